"""Calls of what is not known: methods are recognised by their names, other calls may have trained something."""

from __future__ import annotations

import ast
import re

from unstuck.events import Backward, OptimizerStep, SchedulerStep, ZeroGrad
from unstuck.lazy import pattern
from unstuck.source.reader import knowledge
from unstuck.source.reader.calls.functions import call_function
from unstuck.source.reader.calls.optimizers import scaler_method
from unstuck.source.reader.reader import Call, Reader, callee
from unstuck.source.reader.scope import dotted
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
    members,
)

OPTIMIZER_WORDS = pattern(r"opt(im\w*|imi[sz]er\w*)?(_?[a-z0-9]{1,3})?$|^(d|g|critic|actor)_?opt|solver$|optim", re.I)
SCHEDULER_WORDS = pattern(r"sched|warmup|lr_|_lr$", re.I)
SCALER_WORDS = pattern(r"scaler$", re.I)
LOSS_WORDS = pattern(r"loss|err|cost|out|sum|total", re.I)
TRAINING_WORDS = pattern(r"(^|[._])(opt(im\w*)?|optimi[sz]er\w*|scaler|loss\w*|model|net|trainer|engine|self)$", re.I)
WORLD_WORDS = pattern(
    r"(^|[._])(envs?|environment|gym|game|world|simulator|sim|progress|pbar|bar|profiler|prof)$", re.I
)
"""What has a step() or an update() of its own that trains nothing: an environment, a progress bar, a profiler."""
TRAINING_METHODS = frozenset(
    "step backward zero_grad optimize update minimize train_step fit train_on_batch training_step train_batch "
    "optimize_parameters update_parameters run_step".split()
)
RETURNS_ITSELF = frozenset(
    "to cuda cpu half float double bfloat16 type apply share_memory eval train compile requires_grad_".split()
)


@callee(Unknown, Const, Tensor, Group, Param, Parameters, Choice)
def unknown_callee(reader: Reader, value: Value, call: Call) -> Value:
    """`f(x)` where nothing is known of f."""
    return hide_if_training(reader, call)


def hide_if_training(reader: Reader, call: Call) -> Value:
    """A call that cannot be followed: anything may have happened there if it was given something able to train."""
    if _is_given_training(call):
        reader.hide(call.node, call.values)
    return UNKNOWN


def unknown_method(reader: Reader, method: Method, call: Call) -> Value:
    """`a.name(x)` where `a` is unknown, or has no such method that we know."""
    name, receiver, node = method.name, method.receiver, call.node
    text = dotted(method.node.value)
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
    elif name == "step" and SCHEDULER_WORDS.search(last):
        reader.write(SchedulerStep(kind=text, place=reader.place(node)))
    elif name == "step" and OPTIMIZER_WORDS.search(last):
        closure = call.args[0] if call.args else None
        if isinstance(closure, UserFunction):
            call_function(reader, closure, (), {})
        reader.write(OptimizerStep(optimizer=text, inside_closure=closure is not None, place=reader.place(node)))
    elif name == "parameters":
        return Parameters(receiver)
    elif name == "named_parameters":
        return Group([Group([UNKNOWN, Param(receiver)])], complete=False)
    elif _may_train(method, text, call):
        reader.hide(node, (receiver, *call.values))
    elif name in RETURNS_ITSELF:
        return receiver
    return UNKNOWN


def _backward(reader: Reader, receiver: Value, name: str, call: Call) -> None:
    # `accelerator.backward(loss)` is given the loss; `loss.backward(gradient=...)` is the loss itself.
    is_given_loss = bool(call.args) and not LOSS_WORDS.search(name)
    reader.write(Backward(place=reader.place(call.node)), call.args[0] if is_given_loss else receiver)
    if is_given_loss:
        reader.hide(call.node, call.args)


def _may_train(method: Method, receiver: str, call: Call) -> bool:
    if method.name in TRAINING_METHODS and not isinstance(method.receiver, Symbol):
        return not WORLD_WORDS.search(receiver)
    return _is_given_training(call)


def _is_given_training(call: Call) -> bool:
    if any(_can_train(value, node) for value, node in zip(call.args, call.node.args, strict=False)):
        return True
    return any(_can_train(value, None) for value in call.kwargs.values())


def _can_train(value: Value, node: ast.expr | None) -> bool:
    """Could code that is given this value step, zero or back-propagate?"""
    if value is UNKNOWN:
        return node is not None and TRAINING_WORDS.search(dotted(node)) is not None
    return any(map(_carries_training, members(value)))


def _carries_training(value: Value) -> bool:
    if isinstance(value, Tensor):
        return not value.cut and value.op in knowledge.LOSS_FUNCTIONS
    if isinstance(value, Parameters | Param):
        return True
    if not isinstance(value, Instance):
        return False
    if knowledge.is_optimizer(value) or knowledge.is_scaler(value) or knowledge.is_module(value):
        return value.last not in knowledge.LOSSES
    return value.cls is not None and any(
        item is not value and knowledge.is_optimizer(item) for item in value.attrs.values()
    )
