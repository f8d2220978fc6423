"""O14 in a crash: errors of `cross_entropy` and `nll_loss` about their targets, explained with the user's labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from unstuck.events import Crash, InputFact
from unstuck.events.losses import CLASS_LOSSES
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Evidence, Finding, Subject
from unstuck.record import Record
from unstuck.rules.convergence.ce_target_form import Form, rule
from unstuck.rules.shared.crashes import called, count, crash_of, evidence_of, given, shaped

ONE_ID = "It takes one class id per row of scores: integers (int64) of shape (N,), or (N, H, W) for images."


class Explained(NamedTuple):
    """What is wrong, why, and what to change."""

    variant: Form
    message: str
    cause: str
    fix: str


def explain(record: Record) -> Iterator[Finding]:
    """The finding for a crash of a loss that takes class ids, if its cause is known."""
    for kind, explanation in CAUSES.items():
        crash = crash_of(record, kind)
        if crash is None or crash.function not in CLASS_LOSSES:
            continue
        scores, target = given(crash, "input"), given(crash, "target")
        found = explanation(crash, scores, target) if scores is not None and target is not None else None
        if found is None:
            continue
        evidence = evidence_of(crash, "input", "target", "weight")
        if crash.ids:
            evidence.append(Evidence("ids", [str(value) for value in crash.ids]))
        if outside := count(crash, "outside"):
            evidence.append(Evidence("targets out of range", outside))
        yield rule.finding(
            found.message,
            cause=found.cause,
            fix=found.fix,
            subject=Subject.at("call", crash.function, crash.place),
            place=crash.place,
            evidence=evidence,
            variant=found.variant,
        )
        return


def _target(crash: Crash) -> str:
    return called(crash, "target", "the target")


def _code(crash: Crash) -> str:
    """The target as it can be written in code."""
    return crash.names.get("target", "target")


def _applied(crash: Crash, ending: str) -> str:
    """`labels.long()`, with parentheses if the target is an expression."""
    code = _code(crash)
    simple = all(letter.isalnum() or letter in "_.[]()'\"" for letter in code)
    return f"`{code}{ending}`" if simple else f"`({code}){ending}`"


def _out_of_range(crash: Crash, scores: InputFact, target: InputFact) -> Explained | None:
    classes = count(crash, "rows")
    if classes is None or target.low is None or target.high is None:
        return None
    ignored = count(crash, "ignore_index")
    ids = [value for value in crash.ids if value != ignored] or [int(target.low), int(target.high)]
    low, high = min(ids), max(ids)
    return Explained(
        Form.OUT_OF_RANGE,
        f"{crash.function} gets class ids from {low} to {high} in {_target(crash)}, and scores for {classes} "
        f"class{'' if classes == 1 else 'es'}.",
        f"Ids must be in 0..{classes - 1}: each one picks a column of the scores of shape {shaped(scores.shape)}.",
        _renumbered(crash, ids if crash.ids else [], classes, low, high),
    )


def _renumbered(crash: Crash, ids: list[int], classes: int, low: int, high: int) -> str:
    """The change that brings these ids into range."""
    wrong = [value for value in ids if not 0 <= value < classes]
    right = [value for value in ids if 0 <= value < classes]
    code = _code(crash)
    if classes == 1:
        return (
            "One output has only class 0. For two classes give the last layer 2 outputs, or keep one output and use "
            "binary_cross_entropy_with_logits with float targets."
        )
    if set(ids) == {-1, 1} and classes == 2:
        return f"Map -1 and 1 to 0 and 1: pass `({code} + 1) // 2`."
    if wrong in ([-1], [255]) and right:
        return (
            f"If {wrong[0]} marks labels to ignore, pass ignore_index={wrong[0]} to the loss; "
            "if it is a class, renumber the classes from 0."
        )
    if low >= 1 and high == classes:
        return f"The ids start at 1: pass `{code} - 1`."
    if low >= 0 and 0 < len(ids) <= classes < high:
        return (
            "The ids have gaps. Renumber all labels of the dataset from 0, once: "
            "`ids, labels = torch.unique(labels, return_inverse=True)`."
        )
    if low >= 0:
        return (
            f"If there are {high + 1} classes, give the last layer {high + 1} outputs; otherwise find out where the id "
            f"{high} comes from."
        )
    return "Number the classes from 0, and give rows to ignore the value of ignore_index."


def _wrong_type(crash: Crash, scores: InputFact, target: InputFact) -> Explained | None:
    if target.dtype in ("int64", "uint8"):
        return None
    return Explained(
        Form.WRONG_TYPE,
        f"{crash.function} gets {_target(crash)} as {target.dtype} of shape {shaped(target.shape)}.",
        ONE_ID + " Floats are read as probabilities, and only in the shape of the scores.",
        f"Pass {_applied(crash, '.long()')}, or store the labels as int64 from the start.",
    )


def _extra_dimension(crash: Crash, scores: InputFact, target: InputFact) -> Explained | None:
    shape, wanted = target.shape or (), scores.shape or ()
    if len(shape) != 2 or len(wanted) != 2:
        return None
    message = f"{crash.function} gets {_target(crash)} of shape {shaped(shape)} for scores of shape {shaped(wanted)}."
    if shape[1] == 1:
        ending = ".squeeze(1)" if target.dtype == "int64" else ".squeeze(1).long()"
        return Explained(
            Form.EXTRA_DIMENSION, message, ONE_ID, f"Drop the extra dimension: pass {_applied(crash, ending)}."
        )
    return Explained(
        Form.ONE_HOT,
        message,
        f"{ONE_ID} One row of probabilities per example would need as many columns as there are classes: {wanted[1]}.",
        f"If these are one-hot rows of {shape[1]} classes, pass {_applied(crash, '.argmax(1)')} and give the last "
        f"layer {shape[1]} outputs. If several classes can be right at once, use binary_cross_entropy_with_logits.",
    )


def _one_hot(crash: Crash, scores: InputFact, target: InputFact) -> Explained:
    return Explained(
        Form.ONE_HOT,
        f"{crash.function} gets {_target(crash)} of shape {shaped(target.shape)}, the shape of the scores, as "
        f"{target.dtype}.",
        "Targets with the shape of the scores are read as probabilities, which must be floats; class ids have one "
        "dimension less.",
        f"Pass the ids themselves, without one_hot: {_applied(crash, '.argmax(1)')} recovers them.",
    )


def _mask(crash: Crash, scores: InputFact, target: InputFact) -> Explained | None:
    shape = target.shape or ()
    if len(shape) != 4:
        return None
    single = shape[1] == 1
    ending = ".squeeze(1).long()" if single else ".argmax(1)"
    change = "Drop the channel dimension" if single else "If the masks are one-hot along dimension 1, convert to ids"
    return Explained(
        Form.EXTRA_DIMENSION if single else Form.ONE_HOT,
        f"{crash.function} gets {_target(crash)} of shape {shaped(shape)} for scores of shape {shaped(scores.shape)}.",
        "A mask holds one class id per pixel and has no channel dimension: (N, H, W).",
        f"{change}: pass {_applied(crash, ending)}.",
    )


def _classes_last(crash: Crash, scores: InputFact, target: InputFact) -> Explained | None:
    shape, wanted = scores.shape or (), target.shape or ()
    message = f"{crash.function} gets scores of shape {shaped(shape)} and {_target(crash)} of shape {shaped(wanted)}."
    if len(shape) < 3 or shape[:-1] != wanted:
        return Explained(
            Form.CLASSES_NOT_SECOND,
            message,
            "The classes are dimension 1 of the scores; all other dimensions must match the target.",
            f"Give the target shape {shaped((shape[0], *shape[2:]))}, or the scores the shape of the target.",
        )
    logits = crash.names.get("input", "scores")
    return Explained(
        Form.CLASSES_NOT_SECOND,
        message,
        f"The classes must be dimension 1, but here they are the last: {shape[1]} positions are read as classes.",
        f"Flatten both: `{logits}.reshape(-1, {shape[-1]})` and `{_code(crash)}.reshape(-1)`; or move the classes: "
        f"`{logits}.movedim(-1, 1)`.",
    )


def _rows_differ(crash: Crash, scores: InputFact, target: InputFact) -> Explained | None:
    shape, wanted = scores.shape or (), target.shape or ()
    if not shape or not wanted:
        return None
    rows, labels = shape[0], wanted[0]
    fix = "Give the loss one row of scores for each label."
    if len(shape) == 3 and labels == shape[0] * shape[1]:
        fix = f"The labels are flat and the scores are not: pass `{crash.names.get('input', 'scores')}.flatten(0, 1)`."
    elif labels and rows % labels == 0:
        fix = (
            f"The model makes {rows // labels} rows of each example: a view(-1, ...) in it asks for too few features. "
            "Use x.flatten(1) there, which keeps the batch dimension."
        )
    elif rows and labels % rows == 0:
        fix = f"There are {labels // rows} labels per row of scores: pass those of the same batch, one per row."
    return Explained(
        Form.ROWS_DIFFER,
        f"{crash.function} gets scores for {rows} rows {shaped(shape)} and {labels} labels {shaped(wanted)}.",
        "Each row of scores is compared with one label.",
        fix,
    )


def _class_weights(crash: Crash, scores: InputFact, target: InputFact) -> Explained | None:
    weight = given(crash, "weight")
    if weight is None or len(scores.shape or ()) < 2:
        return None
    classes = (scores.shape or ())[1]
    return Explained(
        Form.CLASS_WEIGHTS,
        f"{crash.function} gets class weights of shape {shaped(weight.shape)} for {classes} classes.",
        "`weight` needs one number for every class.",
        f"Give `weight` {classes} numbers.",
    )


CAUSES: dict[TorchError, Callable[[Crash, InputFact, InputFact], Explained | None]] = {
    TorchError.TARGET_OUT_OF_BOUNDS: _out_of_range,
    TorchError.TARGET_TYPE: _wrong_type,
    TorchError.TARGET_WITH_EXTRA_AXIS: _extra_dimension,
    TorchError.PROBABILITIES_NOT_FLOATING: _one_hot,
    TorchError.TARGET_NOT_SPATIAL: _mask,
    TorchError.TARGET_SIZE: _classes_last,
    TorchError.BATCH_SIZES: _rows_differ,
    TorchError.CLASS_WEIGHTS: _class_weights,
}
