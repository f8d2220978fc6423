"""Calls of what is not known: methods are recognised by their names, other calls may have trained something."""

from __future__ import annotations

import ast
import re
from functools import lru_cache, reduce
from operator import or_

from unstuck.events import Backward, OptimizerStep, SchedulerStep, ZeroGrad
from unstuck.lazy import pattern
from unstuck.source.nodes import parts_of
from unstuck.source.reader import knowledge
from unstuck.source.reader.abilities import ability_of, ability_of_unknown, reachable
from unstuck.source.reader.calls.functions import call_function
from unstuck.source.reader.calls.optimizers import scaler_method
from unstuck.source.reader.everyday import OF_LOSS_FUNCTION, TRAINS, ability_of_name, is_collection, words_of
from unstuck.source.reader.reader import Call, Reader, callee
from unstuck.source.reader.scope import SourceFile, dotted
from unstuck.source.trace import EVERYTHING, NOTHING, Ability
from unstuck.source.values import (
    UNKNOWN,
    Choice,
    Const,
    Group,
    Instance,
    Method,
    Param,
    Parameters,
    Symbol,
    Tensor,
    Unknown,
    UserFunction,
    Value,
)

OPTIMIZER_WORDS = pattern(r"opt(im\w*|imi[sz]er\w*)?(_?[a-z0-9]{1,3})?$|^(d|g|critic|actor)_?opt|solver$|optim", re.I)
SCHEDULER_WORDS = pattern(r"sched|warmup|lr_|_lr$", re.I)
SCALER_WORDS = pattern(r"scaler$", re.I)
LOSS_WORDS = pattern(r"loss|err|cost|out|sum|total", re.I)
TRAINING_METHODS = frozenset(
    "step backward zero_grad optimize update minimize train_step fit train_on_batch training_step train_batch "
    "optimize_parameters update_parameters run_step".split()
)
ENGINE_BACKWARD = pattern(r"^\s*([\w.]+)\.backward\([^)\s]", re.M)
ENGINE_STEP = pattern(r"^\s*([\w.]+)\.step\(\)", re.M)
ENGINE_WORDS = pattern(r"(^|[._])(model|net|engine|model_engine)$", re.I)
WRAPS_BACKWARD = pattern(r"(^|_)(accelerator|fabric|optimi[sz]er|optim|engine|manager|booster)$", re.I)
"""Objects whose `backward(loss)` is the loss's, divided or scaled at most."""
WRAPPERS = pattern(r"(^|_)(accelerator|fabric)$", re.I)
WRAPPER_METHODS = frozenset(
    "accumulate no_sync no_backward_sync autocast unwrap_model prepare prepare_model prepare_data_loader gather "
    "gather_for_metrics reduce pad_across_processes wait_for_everyone free_memory save_state load_state "
    "register_for_checkpointing get_state_dict save_model trackers end_training set_trigger check_trigger setup "
    "setup_module setup_dataloaders all_gather all_reduce broadcast to_device load call".split()
)
"""Methods of Accelerate and Fabric that wrap, move, wait or save."""
ACTION_WORDS = pattern(r"(^|_)(act|action)s?(_|$)", re.I)
NUMBERS = frozenset({knowledge.CUTS["item"], "float()", "int()"})
RETURNS_ITSELF = frozenset(
    "to cuda cpu half float double bfloat16 type apply share_memory eval train compile requires_grad_".split()
)


@callee(Unknown, Const, Tensor, Group, Param, Parameters, Choice)
def unknown_callee(reader: Reader, value: Value, call: Call) -> Value:
    """`f(x)` where nothing is known of f."""
    return hide_if_training(reader, call)


def hide_if_training(reader: Reader, call: Call, name: str = "") -> Value:
    """A call that cannot be followed: what may have happened there follows from its name and from what it was given."""
    hide_given(reader, call, ability_of_name(name or _last_name(call.node.func)))
    return UNKNOWN


def hide_given(reader: Reader, call: Call, at_most: Ability, receiver: Value = UNKNOWN) -> None:
    """Note what a call could do with its arguments and with what its receiver holds, which is `at_most` this."""
    if not at_most:
        return
    given = list(reachable((receiver, *call.values)))
    abilities = [ability_of(value) for value in given]
    for value, node in (*zip(call.args, call.node.args, strict=False), *_keywords(call)):
        named = ability_of_unknown(value, node)
        if named:
            given.append(value)
            abilities.append(named)
    if at_most == OF_LOSS_FUNCTION:
        # What computes a loss clears gradients that it made on its way only through the optimizer (TRADES does).
        abilities = [can & Ability.SWITCH if can & Ability.SWITCH else can for can in abilities]
    can = reduce(or_, abilities, NOTHING)
    if isinstance(receiver, Instance) and given:
        receiver.holds.extend(given)
    if can & at_most:
        reader.hide(call.node, given, can & at_most, anywhere=False)


def _keywords(call: Call) -> list[tuple[Value, ast.expr]]:
    return [(call.kwargs[item.arg], item.value) for item in call.node.keywords if item.arg in call.kwargs]


def _last_name(node: ast.expr) -> str:
    """`meters` of `self.meters["loss"]`."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def unknown_method(reader: Reader, method: Method, call: Call) -> Value:
    """`a.name(x)` where `a` is unknown, or has no such method that we know."""
    name, receiver, node = method.name, method.receiver, call.node
    text = _name_of(reader, method.node.value)
    last = text.rpartition(".")[2]
    if name == "backward":
        _backward(reader, receiver, last, call)
    elif name == "zero_grad":
        optimizer = text if OPTIMIZER_WORDS.search(last) else None
        reader.write(ZeroGrad(optimizer=optimizer, place=reader.place(node)), subject=receiver)
    elif name == "requires_grad_":
        reader.set_trainable(receiver, call.args[0] if call.args else Const(True), node)
    elif name in ("step", "scale", "unscale_", "update") and SCALER_WORDS.search(last):
        return scaler_method(reader, UNKNOWN, name, call)
    elif name in ("step", "step_update") and _step_by_name(reader, text, call):
        return UNKNOWN
    elif name == "item" and not call.values:
        return reader.tensor(name, (receiver,), node, knowledge.CUTS[name])
    elif name == "parameters":
        return Parameters(receiver)
    elif name == "named_parameters":
        return Group([Group([UNKNOWN, Param(receiver)])], complete=False)
    elif name in RETURNS_ITSELF and not isinstance(receiver, Symbol):
        return receiver
    elif name in knowledge.HARMLESS_METHODS and not any(reachable(call.values)):
        pass  # `p.grad.detach().abs()` reads what it belongs to.
    else:
        _unread_method(reader, method, call)
    return UNKNOWN


def _name_of(reader: Reader, node: ast.expr) -> str:
    """What the user calls an object; a member of a collection goes by the collection's name."""
    if isinstance(node, ast.Subscript):
        return _name_of(reader, node.value)
    text = dotted(node)
    collection = reader.frame.member_of.get(text, "")
    last = collection.rpartition(".")[2]
    telling = any(words.search(last) for words in (OPTIMIZER_WORDS, SCHEDULER_WORDS, SCALER_WORDS))
    return collection if collection and telling else text


def _step_by_name(reader: Reader, text: str, call: Call) -> bool:
    """`scheduler.step()`, `optimizer.step()` or `engine.step()` of an object of which only the name is known."""
    last, place = text.rpartition(".")[2], reader.place(call.node)
    if SCHEDULER_WORDS.search(last):
        reader.write(SchedulerStep(kind=text, place=place))
    elif not call.values and _is_engine(reader, text):
        # DeepSpeed's `engine.step()` also clears.
        reader.write(OptimizerStep(optimizer=text, place=place))
        reader.write(ZeroGrad(optimizer=text, place=place))
    elif OPTIMIZER_WORDS.search(last):
        closure = call.args[0] if call.args else None
        if isinstance(closure, UserFunction):
            call_function(reader, closure, (), {})
        reader.write(OptimizerStep(optimizer=text, inside_closure=closure is not None, place=place))
    else:
        return False
    return True


def _is_engine(reader: Reader, name: str) -> bool:
    """Is it what DeepSpeed makes of a model: `engine.backward(loss)`, then `engine.step()`?"""
    assert reader.frame.source is not None
    return bool(name) and name in _engines(reader.frame.source)


@lru_cache(maxsize=16)
def _engines(file: SourceFile) -> frozenset[str]:
    text = "\n".join(file.lines)
    if "deepspeed" not in text.lower():
        return frozenset()
    backwards, steps = set(ENGINE_BACKWARD.findall(text)), set(ENGINE_STEP.findall(text))
    # A module has neither method, so one of them shows that a model is an engine; the other may be in another file.
    return frozenset(backwards & steps | {name for name in backwards | steps if ENGINE_WORDS.search(name)})


def _unread_method(reader: Reader, method: Method, call: Call) -> None:
    """`tracker.update(loss)`, `agent.learn(batch)`: an object of which only the name or the class is known."""
    receiver, holder = method.receiver, _last_name(method.node.value)
    kind = receiver.kind if isinstance(receiver, Instance) else receiver.name if isinstance(receiver, Symbol) else ""
    harmless = _is_action(method, call) or _is_item_given_dict(method, call) or _is_wrapper(method, holder)
    at_most = NOTHING if harmless else ability_of_name(method.name, holder, kind)
    if method.name == "update" and is_collection(holder, kind) and _is_given_weights(call):
        at_most = EVERYTHING
    known = isinstance(receiver, Symbol | Instance)
    if at_most and method.name in TRAINING_METHODS and not known and not _is_given_numbers(method, call):
        # Whatever it holds, it may train that.
        reader.hide(call.node, (receiver, *reachable(call.values)), at_most)
    else:
        hide_given(reader, call, at_most, receiver)


def _is_given_weights(call: Call) -> bool:
    """Is an argument an optimizer, a network or its parameters?"""
    pairs = (*zip(call.args, call.node.args, strict=False), *_keywords(call))
    known = any(ability_of(value) & Ability.STEP for value in reachable(call.values))
    return known or any(ability_of_unknown(value, node) & Ability.STEP for value, node in pairs)


def _is_action(method: Method, call: Call) -> bool:
    """`task.step(action)`: what takes an action is the world that an agent acts in."""
    if method.name != "step" or len(call.node.args) != 1 or any(reachable(call.values)):
        return False
    parts = list(parts_of(call.node.args[0]))
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    names += [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    attributes = [part.attr for part in parts if isinstance(part, ast.Attribute)]
    trains = any(OPTIMIZER_WORDS.search(name) or TRAINS.intersection(words_of(name)) for name in names + attributes)
    return not trains and any(map(ACTION_WORDS.search, names))


def _is_wrapper(method: Method, holder: str) -> bool:
    """`accelerator.accumulate(model)` of an accelerator that came from elsewhere."""
    return method.name in WRAPPER_METHODS and WRAPPERS.search(holder) is not None


def _is_item_given_dict(method: Method, call: Call) -> bool:
    """`detections[i].update({"boxes": boxes})`: what is given a written-out dict is a dict, unless it learns."""
    holder = method.node.value
    written = [isinstance(node, ast.Dict) for node in call.node.args]
    named = isinstance(holder, ast.Subscript) and method.name == "update" and written == [True]
    words = {word.removesuffix("s") for word in words_of(_last_name(holder))}
    return named and not words & TRAINS


def _is_given_numbers(method: Method, call: Call) -> bool:
    """`x.update(loss.item(), 32)`: what is updated with a number is a meter; what learns is given data."""
    return method.name == "update" and any(map(_is_number, call.values))


def _is_number(value: Value) -> bool:
    if isinstance(value, Const):
        return isinstance(value.value, int | float)
    return isinstance(value, Tensor) and value.cut in NUMBERS


def _backward(reader: Reader, receiver: Value, name: str, call: Call) -> None:
    # `accelerator.backward(loss)` is given the loss; `loss.backward(gradient=...)` is the loss itself.
    is_given_loss = bool(call.args) and not LOSS_WORDS.search(name)
    reader.write(Backward(place=reader.place(call.node)), call.args[0] if is_given_loss else receiver)
    if is_given_loss and (
        WRAPS_BACKWARD.search(name) or _is_engine(reader, dotted(call.node.func)[: -len(".backward")])
    ):
        # It divides by the number of accumulated batches.
        reader.hide(call.node, call.args, Ability.RESCALE)
    elif is_given_loss:
        reader.hide(call.node, call.args)
