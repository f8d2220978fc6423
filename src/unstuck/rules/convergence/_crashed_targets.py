"""The crashes of `cross_entropy` and `nll_loss` over their targets, explained with the user's own labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from unstuck.events import Crash, InputFact
from unstuck.findings import Evidence, Finding, Subject
from unstuck.rules.shared.crashes import Explanation, called, count, crash_of, evidence_of, given, shaped

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.rule import Rule

LOSSES = ("cross_entropy", "nll_loss")
ONE_ID = "It takes one class id per row of scores: integers (int64) of shape (N,), or (N, H, W) for images."


def explain(record: Record, rule: Rule) -> Iterator[Finding]:
    """The finding for a crash of a loss that takes class ids, if its cause is known."""
    for signs, explanation in CAUSES.items():
        crash = crash_of(record, *signs)
        if crash is None or crash.function not in LOSSES:
            continue
        scores, target = given(crash, "input"), given(crash, "target")
        said = explanation(crash, scores, target) if scores is not None and target is not None else None
        if said is not None:
            yield _finding(crash, rule, said)
            return


def _finding(crash: Crash, rule: Rule, said: Explanation) -> Finding:
    evidence = evidence_of(crash, "input", "target", "weight")
    if crash.ids:
        evidence.append(Evidence("ids", [str(value) for value in crash.ids]))
    if outside := count(crash, "outside"):
        evidence.append(Evidence("targets out of range", outside))
    return rule.finding(
        said.message,
        cause=said.cause,
        fix=said.fix,
        subject=Subject("call", f"{crash.function} at {crash.place}"),
        place=crash.place,
        evidence=evidence,
    )


def _target(crash: Crash) -> str:
    return called(crash, "target", "the target")


def _written(crash: Crash) -> str:
    """The target as it can stand in code."""
    return crash.names.get("target", "target")


def _applied(crash: Crash, ending: str) -> str:
    """`labels.long()`, with brackets where the target is an expression."""
    written = _written(crash)
    simple = all(letter.isalnum() or letter in "_.[]()'\"" for letter in written)
    return f"`{written}{ending}`" if simple else f"`({written}){ending}`"


def _out_of_range(crash: Crash, scores: InputFact, target: InputFact) -> Explanation | None:
    classes = count(crash, "rows")
    if classes is None or target.low is None or target.high is None:
        return None
    ignored = count(crash, "ignore_index")
    kept = [value for value in crash.ids if value != ignored] or [int(target.low), int(target.high)]
    low, high = min(kept), max(kept)
    return Explanation(
        f"{crash.function} is given class ids from {low} to {high} in {_target(crash)}, and scores for {classes} "
        f"class{'' if classes == 1 else 'es'}.",
        f"Ids must lie in 0..{classes - 1}: each one picks a column of the scores of shape {shaped(scores.shape)}.",
        _renumbered(crash, kept if crash.ids else [], classes, low, high),
    )


def _renumbered(crash: Crash, ids: list[int], classes: int, low: int, high: int) -> str:
    """The change that brings these ids into range."""
    wrong = [value for value in ids if not 0 <= value < classes]
    right = [value for value in ids if 0 <= value < classes]
    written = _written(crash)
    if classes == 1:
        return (
            "One output has only class 0. For two classes give the last layer 2 outputs, or keep one output and use "
            "binary_cross_entropy_with_logits with float targets."
        )
    if set(ids) == {-1, 1} and classes == 2:
        return f"Map -1 and 1 to 0 and 1: pass `({written} + 1) // 2`."
    if wrong in ([-1], [255]) and right:
        return (
            f"If {wrong[0]} marks what is not to be learnt, pass ignore_index={wrong[0]} to the loss; "
            "if it is a class, renumber the classes from 0."
        )
    if low >= 1 and high == classes:
        return f"The ids are numbered from 1: pass `{written} - 1`."
    if low >= 0 and 0 < len(ids) <= classes < high:
        return (
            "The ids have gaps. Number all labels of the data set once from 0: "
            "`ids, labels = torch.unique(labels, return_inverse=True)`."
        )
    if low >= 0:
        return (
            f"If there are {high + 1} classes, give the last layer {high + 1} outputs; else find out where the id "
            f"{high} comes from."
        )
    return "Number the classes from 0, and give rows to be left out the value of ignore_index."


def _wrong_type(crash: Crash, scores: InputFact, target: InputFact) -> Explanation | None:
    if target.dtype in ("int64", "uint8"):
        return None
    return Explanation(
        f"{crash.function} is given {_target(crash)} as {target.dtype} of shape {shaped(target.shape)}.",
        ONE_ID + " Floats are taken as probabilities, and only in the shape of the scores.",
        f"Pass {_applied(crash, '.long()')}, or keep the labels as int64 from the start.",
    )


def _extra_axis(crash: Crash, scores: InputFact, target: InputFact) -> Explanation | None:
    shape, wanted = target.shape or (), scores.shape or ()
    if len(shape) != 2 or len(wanted) != 2:
        return None
    message = (
        f"{crash.function} is given {_target(crash)} of shape {shaped(shape)} for scores of shape {shaped(wanted)}."
    )
    if shape[1] == 1:
        ending = ".squeeze(1)" if target.dtype == "int64" else ".squeeze(1).long()"
        return Explanation(message, ONE_ID, f"Take the extra axis away: pass {_applied(crash, ending)}.")
    return Explanation(
        message,
        f"{ONE_ID} One row of probabilities per sample would need as many columns as there are classes: {wanted[1]}.",
        f"If these are one-hot rows of {shape[1]} classes, pass {_applied(crash, '.argmax(1)')} and give the last "
        f"layer {shape[1]} outputs. Where several classes can be right at once, use binary_cross_entropy_with_logits.",
    )


def _one_hot(crash: Crash, scores: InputFact, target: InputFact) -> Explanation:
    return Explanation(
        f"{crash.function} is given {_target(crash)} of shape {shaped(target.shape)}, the shape of the scores, as "
        f"{target.dtype}.",
        "Targets of the shape of the scores are read as probabilities, which must be floats; class ids have one axis "
        "less.",
        f"Pass the ids themselves, without one_hot: {_applied(crash, '.argmax(1)')} gives them back.",
    )


def _spatial(crash: Crash, scores: InputFact, target: InputFact) -> Explanation | None:
    shape = target.shape or ()
    if len(shape) != 4:
        return None
    ending = ".squeeze(1).long()" if shape[1] == 1 else ".argmax(1)"
    remedy = "Take the channel away" if shape[1] == 1 else "If the masks are one-hot along axis 1, turn them into ids"
    return Explanation(
        f"{crash.function} is given {_target(crash)} of shape {shaped(shape)} for scores of shape "
        f"{shaped(scores.shape)}.",
        "A mask holds one class id per pixel and has no axis of channels: (N, H, W).",
        f"{remedy}: pass {_applied(crash, ending)}.",
    )


def _classes_last(crash: Crash, scores: InputFact, target: InputFact) -> Explanation | None:
    shape, wanted = scores.shape or (), target.shape or ()
    message = (
        f"{crash.function} is given scores of shape {shaped(shape)} and {_target(crash)} of shape {shaped(wanted)}."
    )
    if len(shape) < 3 or shape[:-1] != wanted:
        return Explanation(
            message,
            "The classes are axis 1 of the scores; all other axes must be those of the target.",
            f"Bring the target to shape {shaped((shape[0], *shape[2:]))}, or the scores to that of the target.",
        )
    logits = crash.names.get("input", "scores")
    return Explanation(
        message,
        f"The classes must be axis 1, and here they are the last axis: {shape[1]} positions are taken for classes.",
        f"Flatten both: `{logits}.reshape(-1, {shape[-1]})` and `{_written(crash)}.reshape(-1)`; or move the classes: "
        f"`{logits}.movedim(-1, 1)`.",
    )


def _rows_differ(crash: Crash, scores: InputFact, target: InputFact) -> Explanation | None:
    shape, wanted = scores.shape or (), target.shape or ()
    if not shape or not wanted:
        return None
    rows, labels = shape[0], wanted[0]
    fix = "Give the loss as many rows of scores as there are labels."
    if len(shape) == 3 and labels == shape[0] * shape[1]:
        fix = f"The labels are flat and the scores are not: pass `{crash.names.get('input', 'scores')}.flatten(0, 1)`."
    elif labels and rows % labels == 0:
        fix = (
            f"The model makes {rows // labels} rows of each sample: a view(-1, ...) in it asks for too few features. "
            "Write x.flatten(1) there, which keeps the batch."
        )
    elif rows and labels % rows == 0:
        fix = f"There are {labels // rows} labels per row of scores: pass those of the same batch, one per row."
    return Explanation(
        f"{crash.function} is given scores for {rows} rows {shaped(shape)} and {labels} labels {shaped(wanted)}.",
        "Each row of scores is compared with one label.",
        fix,
    )


def _weights(crash: Crash, scores: InputFact, target: InputFact) -> Explanation | None:
    weight = given(crash, "weight")
    if weight is None or len(scores.shape or ()) < 2:
        return None
    classes = (scores.shape or ())[1]
    return Explanation(
        f"{crash.function} is given class weights of shape {shaped(weight.shape)} for {classes} classes.",
        "`weight` holds one number per class, for all classes or not at all.",
        f"Give `weight` {classes} numbers.",
    )


CAUSES: dict[tuple[str, ...], Callable[[Crash, InputFact, InputFact], Explanation | None]] = {
    ("is out of bounds",): _out_of_range,
    ("expected target dtype to be", "expected scalar type Long", "not implemented for"): _wrong_type,
    ("multi-target not supported", "1D target tensor expected"): _extra_axis,
    ("Expected floating point type for target with class probabilities",): _one_hot,
    ("only batches of spatial targets supported",): _spatial,
    ("Expected target size",): _classes_last,
    ("Expected input batch_size",): _rows_differ,
    ("weight tensor should be defined",): _weights,
}
