"""M16: a tensor that autograd still needs is changed in place."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Crash
from unstuck.events.torch_errors import CHANGED_TENSOR, TorchError
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import crash_of, in_words, shaped, word

rule = Rule(
    code="M16",
    name="inplace-on-graph",
    title="a tensor that the gradient needs is changed in place",
    severity=Severity.ERROR,
)

LEAF_CAUSE = "Autograd cannot record an in-place change of a leaf, so it forbids it."
CAUSE = "The gradient of that operation needs the old values, and they are gone."
NEW_TENSOR = (
    "Create a new tensor instead: `x = x + y` for `x += y`, torch.where for `x[mask] = 0`, or change `x.clone()`."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """autograd raises at once for a leaf, and in backward() for other tensors."""
    leaf = crash_of(record, TorchError.LEAF_CHANGED_IN_PLACE)
    if leaf is not None:
        yield _of_leaf(leaf)
        return
    crash = crash_of(record, TorchError.CHANGED_IN_PLACE)
    if crash is not None:
        yield _of_graph(crash)


def _of_leaf(crash: Crash) -> Finding:
    changed = next((fact for fact in crash.variables if fact.requires_grad), None)
    name = f"`{changed.name}`" if changed else "A tensor"
    return _finding(
        crash,
        f"{name} requires a gradient, and this line changes it in place while autograd records.",
        LEAF_CAUSE,
        "Put a manual update under `with torch.no_grad():`. If the change is part of the model, create a new "
        "tensor: `x = x + y` for `x += y`.",
        [Evidence(changed.name, in_words(changed))] if changed else [],
    )


def _of_graph(crash: Crash) -> Finding:
    how, names = word(crash, "how"), [f"`{name}`" for name in crash.suspects]
    match = CHANGED_TENSOR.search(crash.message)
    shape, maker = match.groups() if match else ("", None)
    evidence = [Evidence("changed tensor", shaped(tuple(int(side) for side in shape.split(",") if side.strip())))]
    made = (maker or "").removesuffix("0").removesuffix("Backward")
    if how == "parameter":
        which = "parameter" if len(names) == 1 else "parameters"
        message = f"The {which} {', '.join(names)} changed between the forward pass and this backward()."
        fix = (
            "Call optimizer.step() only after every backward() of the same forward pass; for a later backward(), run "
            "the forward pass again."
        )
        return _finding(crash, message, CAUSE, fix, evidence)
    if made:
        evidence.append(Evidence("made by", made))
    whose = f"The output of {made}" if made and made not in ("AsStrided", "T") else "A tensor"
    if how == "variable":
        message = f"{names[0]} is changed in place after an operation whose gradient needs its old values."
        return _finding(crash, message, CAUSE, NEW_TENSOR, evidence)
    message = f"{whose} was changed in place after an operation whose gradient needs its old values."
    if how == "layer":
        fix = f"Build {' and '.join(names)} without inplace=True."
        return _finding(crash, f"{message[:-1]}, by a layer with inplace=True.", CAUSE, fix, evidence)
    if crash.suspect_places:
        return _finding(crash, message + " These lines change tensors in place.", CAUSE, NEW_TENSOR, evidence)
    fix = f"{NEW_TENSOR} Layers built with inplace=True do the same: drop it after that operation."
    return _finding(crash, message, CAUSE, fix, evidence)


def _finding(crash: Crash, message: str, cause: str, fix: str, evidence: list[Evidence]) -> Finding:
    guessed = word(crash, "how") == "forward" and bool(crash.suspect_places)
    places = crash.suspect_places
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "in-place change", crash.place, word="behind"),
        place=places[0] if len(places) == 1 else crash.place,
        related=(crash.place, *places),
        evidence=evidence,
        confidence=Confidence.LIKELY if guessed else Confidence.CERTAIN,
    )
