"""The edits that put zero_grad, backward and step into order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unstuck.events import Backward, Clip, OptimizerStep, Place, ZeroGrad
from unstuck.rules.shared import loop_order as order
from unstuck.source.edits.edit import Editor, Edits
from unstuck.source.trace import Happened, Path
from unstuck.source.values import Instance

if TYPE_CHECKING:
    from unstuck.source import Script


def reordered(script: Script, ways: Sequence[Path], place: Place, *, early: bool) -> Edits | None:
    """A step moved behind its backward, or a zero_grad in front of the first one it wipes."""
    targets = {target for way in ways for target in (_later(way, place) if early else _earlier(way, place))}
    target = targets.pop() if len(targets) == 1 else None
    if target is None:
        return None
    editor = Editor(script)
    return editor.move_after(place, target) if early else editor.move_before(place, target)


def _earlier(path: Path, zero: Place) -> Iterator[Place | None]:
    """The first backward of a turn after its last step before the zero_grad.

    None for a turn that does not step: what accumulates over turns must not be cleared in each.
    """
    for turn, at in _turns_with(path, zero):
        found: Place | None = None
        if not any(isinstance(item.event, OptimizerStep) for item in turn[at:]):
            yield None
        for item in reversed(turn[:at]):
            if isinstance(item.event, OptimizerStep):
                break
            found = item.event.place if isinstance(item.event, Backward) else found
        yield found


def _later(path: Path, step: Place) -> Iterator[Place | None]:
    """The last backward of a turn after the step; None where a scaler has more to say about it."""
    for turn, at in _turns_with(path, step):
        event = turn[at].event
        backwards = [item.event.place for item in turn[at:] if isinstance(item.event, Backward)]
        scaled = isinstance(event, OptimizerStep) and event.through_scaler
        yield backwards[-1] if backwards and not scaled else None


def _turns_with(path: Path, place: Place) -> Iterator[tuple[list[Happened], int]]:
    """Each turn of the path in which something happens at a place, and its position in the turn."""
    turns: dict[int, list[Happened]] = {}
    for item, turn in zip(order.gradient_events(path), order.iteration_numbers(path), strict=True):
        turns.setdefault(turn, []).append(item)
    for items in turns.values():
        yield from ((items, at) for at, item in enumerate(items) if item.event.place == place)


def step_added(
    script: Script, items: Sequence[Happened], waiting: Instance | str, backward: Place | None
) -> Edits | None:
    """`optimizer.step()` after the backward and its clipping, for an optimizer that is cleared in the same function."""
    if backward is None:
        return None
    editor = Editor(script)
    zeros = [item for item in items if isinstance(item.event, ZeroGrad) and _is(item, waiting)]
    for place in order.places(item.event for item in zeros):
        receiver = _receiver(editor, place)
        scaled = "scale(" in (editor.text_of(backward) or "scale(")
        if receiver and place.function == backward.function and not scaled:
            last = _last_clip(items, backward)
            return _called(editor, f"{receiver}.step") or editor.insert_after(last or backward, f"{receiver}.step()")
    return None


def _last_clip(items: Sequence[Happened], backward: Place) -> Place | None:
    clips = order.places(item.event for item in items if isinstance(item.event, Clip))
    return max((place for place in clips if _follows(place, backward)), key=lambda place: place.line, default=None)


def _follows(place: Place, backward: Place) -> bool:
    return (place.path, place.function) == (backward.path, backward.function) and place.line > backward.line


def _is(item: Happened, waiting: Instance | str) -> bool:
    if isinstance(waiting, Instance):
        return item.subject is waiting
    return isinstance(item.event, ZeroGrad) and item.event.optimizer == waiting


def clearing_added(script: Script, step: OptimizerStep) -> Edits | None:
    """`optimizer.zero_grad()` after the step, which is right with and without accumulation."""
    if step.place is None:
        return None
    editor = Editor(script)
    call = editor.call_at(step.place)
    if step.through_scaler:
        given = editor.text_of(call.args[0]) if call and call.args else None
    else:
        given = _receiver(editor, step.place)
    if given is None:
        return None
    return _called(editor, f"{given}.zero_grad") or editor.insert_after(step.place, f"{given}.zero_grad()")


def _called(editor: Editor, method: str) -> Edits | None:
    """The missing parentheses, where the method stands on a line of its own without them."""
    bare = [node.value for node in ast.walk(editor.tree) if isinstance(node, ast.Expr)]
    meant = [node for node in bare if isinstance(node, ast.Attribute) and ast.unparse(node) == method]
    return editor.replace(meant[0], f"{method}()") if len(meant) == 1 else None


def _receiver(editor: Editor, place: Place) -> str | None:
    call = editor.call_at(place)
    return editor.text_of(call.func.value) if call and isinstance(call.func, ast.Attribute) else None
