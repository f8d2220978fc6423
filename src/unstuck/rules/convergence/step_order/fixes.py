"""The edits that put zero_grad, backward and step into order."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from unstuck.events import Backward, Clip, OptimizerStep, Place, ZeroGrad
from unstuck.rules.shared import loop_order
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, Edits
from unstuck.source.trace import Happened, Path
from unstuck.source.values import Instance


def reordered(script: Script, ways: Sequence[Path], place: Place, *, step_is_early: bool) -> Edits | None:
    """Move a step after its backward, or a zero_grad before the first backward whose gradients it clears."""
    targets = {target for way in ways for target in (_later(way, place) if step_is_early else _earlier(way, place))}
    target = targets.pop() if len(targets) == 1 else None
    if target is None:
        return None
    editor = Editor(script)
    return editor.move_after(place, target) if step_is_early else editor.move_before(place, target)


def _earlier(path: Path, zero: Place) -> Iterator[Place | None]:
    """The first backward of each iteration after the last step before the zero_grad.

    None for an iteration without a step: gradients that accumulate over iterations must not be cleared in each.
    """
    for items, at in _iterations_with(path, zero):
        found: Place | None = None
        if not any(isinstance(item.event, OptimizerStep) for item in items[at:]):
            yield None
        for item in reversed(items[:at]):
            if isinstance(item.event, OptimizerStep):
                break
            found = item.event.place if isinstance(item.event, Backward) else found
        yield found


def _later(path: Path, step: Place) -> Iterator[Place | None]:
    """The last backward of each iteration after the step; None with a scaler, whose calls would have to move too."""
    for items, at in _iterations_with(path, step):
        event = items[at].event
        backwards = [item.event.place for item in items[at:] if isinstance(item.event, Backward)]
        scaled = isinstance(event, OptimizerStep) and event.through_scaler
        yield backwards[-1] if backwards and not scaled else None


def _iterations_with(path: Path, place: Place) -> Iterator[tuple[list[Happened], int]]:
    """Each iteration of the path in which something happens at a place, and its position in the iteration."""
    iterations: dict[int, list[Happened]] = {}
    for item, number in loop_order.gradient_items(path):
        if not isinstance(item, Happened):
            continue
        iterations.setdefault(number, []).append(item)
    for items in iterations.values():
        yield from ((items, at) for at, item in enumerate(items) if item.event.place == place)


def step_added(script: Script, items: Sequence[Happened], idle: Instance | str, backward: Place | None) -> Edits | None:
    """`optimizer.step()` after the backward and its clipping, for an optimizer that is cleared in the same function."""
    if backward is None:
        return None
    editor = Editor(script)
    zeros = [
        item
        for item in items
        if isinstance(item.event, ZeroGrad)
        and (item.subject is idle if isinstance(idle, Instance) else item.event.optimizer == idle)
    ]
    for place in loop_order.places(item.event for item in zeros):
        receiver = _receiver(editor, place)
        scaled = "scale(" in (editor.text_of(backward) or "scale(")
        if receiver and place.function == backward.function and not scaled:
            last = _last_clip(items, backward)
            return editor.insert_after(last or backward, f"{receiver}.step()")
    return None


def _last_clip(items: Sequence[Happened], backward: Place) -> Place | None:
    """The last clipping after the backward in the same function."""
    clips = [
        place
        for place in loop_order.places(item.event for item in items if isinstance(item.event, Clip))
        if (place.path, place.function) == (backward.path, backward.function) and place.line > backward.line
    ]
    return max(clips, key=lambda place: place.line, default=None)


def clearing_added(script: Script, step: OptimizerStep) -> Edits | None:
    """`optimizer.zero_grad()` after the step, which is right with and without accumulation."""
    if step.place is None:
        return None
    editor = Editor(script)
    call = editor.call_at(step.place)
    if step.through_scaler:
        optimizer = editor.text_of(call.args[0]) if call and call.args else None
    else:
        optimizer = _receiver(editor, step.place)
    if optimizer is None:
        return None
    return editor.insert_after(step.place, f"{optimizer}.zero_grad()")


def _receiver(editor: Editor, place: Place) -> str | None:
    call = editor.call_at(place)
    return editor.text_of(call.func.value) if call and isinstance(call.func, ast.Attribute) else None
