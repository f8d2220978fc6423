"""Which change takes a finding out of a run."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from unstuck.findings import Diagnosis, Severity
from unstuck.interventions import EditSource, GiveLoss, Intervention
from unstuck.rule import find_rule


class Remedied(msgspec.Struct, frozen=True):
    """A diagnosis with one way to mend it in a trial."""

    diagnosis: Diagnosis
    changes: tuple[Intervention, ...]
    words: str
    """What is changed."""
    changes_loss: bool = False


def remedies_of(diagnosis: Diagnosis) -> Iterator[Remedied]:
    """The edits of its fix first, since they are what the user will do; then what its rule knows to do from outside."""
    lead = diagnosis.lead
    rule = find_rule(lead.code)
    changes_loss = rule is not None and rule.changes_loss
    edits = next((finding.fix.edits for finding in (lead, *diagnosis.findings) if finding.fix.edits), ())
    if edits:
        yield Remedied(diagnosis, (EditSource(edits),), "the edit below", changes_loss)
    if rule is None or rule.remedy is None:
        return
    ways = dict.fromkeys(tuple(way) for finding in (lead, *diagnosis.findings) for way in rule.remedy(finding))
    for changes in ways:
        # Other interventions leave the value of the loss alone, whatever an edit would do to it.
        gives = any(isinstance(change, GiveLoss) for change in changes)
        yield Remedied(diagnosis, changes, described(changes), changes_loss and gives)


def worth_trying(diagnosis: Diagnosis) -> bool:
    """Is there a way to mend it, and does it matter?"""
    return diagnosis.severity is not Severity.ADVICE and next(remedies_of(diagnosis), None) is not None


_WORDS = {
    "clear-gradients": "gradients cleared after every step",
    "keep-gradients": "no clearing between backward() and step()",
    "take-steps": "a step after every backward()",
    "training-mode": "the model in training mode whenever it is called with gradients",
    "unscale-before-clip": "gradients unscaled before they are clipped",
    "no-clipping": "the script's own clipping switched off",
    "add-parameters": "the missing parameters given to the optimizer",
    "no-schedule": "the learning rate held where it begins",
    "no-dropout": "nothing dropped",
    "no-weight-decay": "no weight decay",
}
_FORMS = {
    "undo-softmax": "logits instead of probabilities",
    "undo-sigmoid": "logits instead of probabilities",
    "log-softmax": "log-probabilities instead of raw scores",
    "log": "log-probabilities instead of probabilities",
    "same-shape": "the target in the shape of the prediction",
    "swapped": "the arguments of the loss swapped",
}


def described(changes: tuple[Intervention, ...]) -> str:
    """What interventions do, in words."""
    return " and ".join(_described(change) for change in changes)


def _described(change: Intervention) -> str:
    kind = str(type(change).__struct_config__.tag)
    fields = msgspec.structs.asdict(change)
    if kind == "set-rate":
        return f"the learning rate times {fields['factor']:.3g}"
    if kind == "give-loss":
        return f"the loss given {_FORMS[fields['form']]}"
    if kind == "divide-loss":
        return f"the loss divided by {fields['by']:.4g}"
    if kind == "clip-gradients":
        return f"gradients clipped to a norm of {fields['norm']:.3g}"
    if kind == "set-option":
        return f"{fields['name']} set to {fields['value']:.3g}"
    if kind == "change-inputs":
        return f"inputs {fields['how']}"
    return _WORDS.get(kind, kind)
