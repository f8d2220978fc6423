"""What is given to a loss: shared by the rules about predictions and targets."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from unstuck.events import LossCall
from unstuck.source.edits import syntax
from unstuck.source.edits.edit import Editor, Edits
from unstuck.source.flow import producers
from unstuck.source.trace import Happened
from unstuck.source.values import Instance, Tensor, Value

if TYPE_CHECKING:
    from unstuck.source import Script


def training_losses(script: Script, losses: Collection[str]) -> Iterator[tuple[Happened, list[Tensor]]]:
    """Calls of these loss functions where gradients are recorded, with what made the prediction on every way.

    Left out are calls whose prediction may have come about in a way that is not known.
    """
    for call in script.facts.losses:
        event = call.event
        if not isinstance(event, LossCall) or event.loss not in losses or event.output_requires_grad is False:
            continue
        made = makers(call.value) if call.value is not None else []
        known = [maker for maker in made if isinstance(maker, Tensor)]
        if made and len(known) == len(made):
            yield call, known


def makers(value: Value) -> list[Value]:
    """What made a value, seen through reshapes, casts, branches and dropout."""
    found: list[Value] = []
    for maker in producers(value):
        if isinstance(maker, Tensor) and maker.op == "dropout" and maker.inputs:
            found += makers(maker.inputs[0])
        else:
            found.append(maker)
    return found


def loss_name(call: Happened) -> str:
    """The functional name of the loss that was called."""
    assert isinstance(call.event, LossCall)
    return call.event.loss


def loss_object(call: Happened) -> Instance | None:
    """The loss module that was called, or None for a function."""
    return call.result.module if isinstance(call.result, Tensor) else None


def calls_of(script: Script, loss: Instance) -> list[Happened]:
    """Every call of one loss module."""
    return [call for call in script.facts.losses if loss_object(call) is loss]


def stands_in(editor: Editor, maker: Tensor, call: Happened) -> bool:
    """Is the operation written inside the loss call itself, so that nobody else sees its result?"""
    inner = editor.call_at(maker.place) if maker.place else None
    outer = editor.call_at(call.event.place) if call.event.place else None
    return inner is not None and outer is not None and any(node is inner for node in ast.walk(outer))


def is_function_of_torch(script: Script, node: ast.AST, name: str) -> bool:
    """Is this a call of the function in torch or the method of a tensor, and of no attribute the user named alike?"""
    for called in script.facts.calls:
        if called.node is node:
            method = called.name == f".{name}" and isinstance(called.receiver, Tensor)
            return method or (called.name.startswith("torch.") and called.last == name)
    return False


def without(editor: Editor, maker: Tensor) -> Edits | None:
    """Put what an activation was given where its call stands: `torch.sigmoid(x)` and `x.sigmoid()` become `x`.

    None for a layer of a Sequential, whose call is not written down.
    """
    node = editor.call_at(maker.place) if maker.place else None
    made_here = maker.module is not None and maker.module.place == maker.place
    if node is None or made_here or len(node.args) > 1:
        return None
    inner = node.args[0] if node.args else node.func.value if isinstance(node.func, ast.Attribute) else None
    text = editor.text_of(inner) if inner is not None else None
    if inner is None or text is None:
        return None
    return editor.replace(node, text if isinstance(inner, syntax.ATOMS) else f"({text})")


def renamed_loss(script: Script, editor: Editor, call: Happened, function: str, module: str) -> Edits | None:
    """Call another loss instead: the function where it is called, a module where it is made.

    A module that is also called elsewhere cannot be renamed for the sake of one call.
    """
    made = loss_object(call)
    if made is None:
        return editor.rename_callee(call.event.place, function) if call.event.place else None
    places = {other.event.place for other in calls_of(script, made)}
    return editor.rename_callee(made.place, module) if made.place and places == {call.event.place} else None
