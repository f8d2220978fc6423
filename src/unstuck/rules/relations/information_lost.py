"""P19: the target can be read from the inputs, and from some place in the forward pass on no longer."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.rule import Rule

rule = Rule(
    code="P19",
    name="information-lost",
    title="the target can be read from the inputs, and from some layer on no longer",
    severity=Severity.ERROR,
    explains=("O01", "O07", "O25", "M13", "R03", "R08", "G09"),
)

ALIKE = (
    "From there on every example looks the same to the model: multiplied by zero, masked out, pooled over the wrong "
    "axis, cut to a part that is constant, or saturated."
)
MIXED = (
    "What is left there does not belong to its example any more: a view() or reshape() where a transpose() was meant, "
    "an index that takes the wrong position, a mask or an axis that drops the part that matters."
)
TRAINED = (
    "Before training it still came through, so the weights have lost it: units that died, saturation, or weights that "
    "became too large or zero. A learning rate that is too high is the usual cause."
)
UNKNOWN = (
    "Before training it could not be read there either, as behind weights that begin at zero, so the code may drop it, "
    "or the weights may not let it through: an axis or a mask, units that died, saturation."
)
FOLLOW = "Look at {where} with one batch in hand: its shape, its axes, and whether rows differ between examples."
UPDATE = "Lower the learning rate or clip gradients, and look at the outputs of {where} while it trains."


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The experiment `layers` found a place after which nothing can be read."""
    measures = experiment.measures
    name = measures.get("lost_at")
    if experiment.name != "layers" or experiment.verdict != ExperimentVerdict.LOST or not isinstance(name, str):
        return
    from_start, in_training = (measures.get("since") == word for word in ("start", "training"))
    module = measures.get("module") or name
    where = (
        f"`{module}`"
        if measures.get("kind")
        else "the code right before it"
        if module == name
        else f"what `{module}` is given"
    )
    names = {
        "inputs": "share of the target that can be read from the inputs",
        "before": f"from {measures.get('readable_at')}",
        "after": f"from {name}",
        "chance": "largest share by chance",
    }
    rows = [(text, measures.get(key)) for key, text in names.items()]
    cause = TRAINED if in_training else UNKNOWN if not from_start else ALIKE if measures.get("is_alike") else MIXED
    yield rule.finding(
        experiment.sentence,
        cause=cause,
        fix=(UPDATE if in_training else FOLLOW).format(where=where),
        subject=Subject("module", str(module)),
        place=experiment.place,
        evidence=[Evidence(text, float(f"{value:.3g}")) for text, value in rows if isinstance(value, int | float)],
        severity=Severity.ERROR if from_start else Severity.WARNING,
        confidence=Confidence.CERTAIN if from_start else Confidence.LIKELY,
    )
