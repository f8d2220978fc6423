"""P21: the run learns with one of its parts replaced by one that is known to work, and not with its own."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject, Variant
from unstuck.findings.results import Experiment, ExperimentVerdict
from unstuck.rule import Rule


class Faulty(Variant):
    """The part."""

    DATA = "data", "with other data the rest learns, and with these nothing does"
    INPUT_SCALE = "input-scale", "the model learns once its inputs have mean 0 and deviation 1"
    MODEL = "model", "another model learns from the same data by the same loss"
    LOSS = "loss", "the model learns by the loss that fits its outputs and targets"
    UPDATE = "update", "the run learns with gradients cleared, clipped and given to Adam"
    SEVERAL = "several", "two parts together explain it, or either of them does"


rule = Rule(
    code="P21",
    name="part-at-fault",
    title="the run learns once one part is replaced: the data, the model, the loss or the update",
    severity=Severity.ERROR,
    explains=("G09", "M13", "O01", "O07", "O22", "O25", "O26", "R03", "R08"),
    variants=Faulty.titles(),
)

PARTS = {"data": Faulty.DATA, "model": Faulty.MODEL, "loss": Faulty.LOSS, "update": Faulty.UPDATE}
CAUSES = {
    Faulty.DATA: (
        "Model, loss and update work: they learn targets that follow from inputs of the same shape and range. Another "
        "model learns nothing from the script's own inputs and targets either."
    ),
    Faulty.INPUT_SCALE: (
        "Only the scale of the inputs was changed. Inputs far from mean 0 and deviation 1 saturate layers, or make the "
        "first gradients far too large or too small."
    ),
    Faulty.MODEL: (
        "Inputs, targets and loss are the same in both runs, and our model brings its own update. Something in the "
        "layers of the script's model, its forward() or its initial weights is in the way, or else its update."
    ),
    Faulty.LOSS: "Inputs, targets, model and update are the same in both runs; what backward() starts from is not.",
    Faulty.UPDATE: (
        "Data, model and loss are the same in both runs. What differs is which gradients are collected, which "
        "parameters are updated, and by which rule and rate."
    ),
    Faulty.SEVERAL: "The parts that are not named were shown to work together with others; these were not.",
}
MODEL_AND_NOT_UPDATE = (
    "Inputs, targets and loss are the same in both runs, and with a known-good update the script's model does not "
    "learn either: something in its layers, its forward() or its initial weights is in the way."
)
FIXES = {
    Faulty.DATA: (
        "Look at inputs and targets of one batch where the model and the loss receive them: are they what you think, "
        "and do they belong together? If not, go back through the data pipeline to where they separate."
    ),
    Faulty.INPUT_SCALE: "Standardise the inputs with the mean and deviation of the training set.",
    Faulty.MODEL: (
        "Follow one batch through forward(): where do examples become alike, axes change places, or gradients end? "
        "Replace half of the model by plain layers, and repeat with the half that matters."
    ),
    Faulty.LOSS: (
        "Start from the loss that fits: cross_entropy for classes, binary_cross_entropy_with_logits for yes and no, "
        "mse_loss for numbers. Check the sign, the order of the arguments, the weights of its terms and the axis of "
        "every sum."
    ),
    Faulty.UPDATE: (
        "Write zero_grad(), backward(), step() in this order, pass model.parameters() to torch.optim.Adam at lr=1e-3, "
        "and bring your own settings back one by one."
    ),
    Faulty.SEVERAL: "Replace one of the parts by something plain that works, fix the other, and try again.",
}


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """`isolate` has cornered a part."""
    if experiment.name != "isolate" or experiment.verdict != ExperimentVerdict.CORNERED:
        return
    measures = experiment.measures
    part = str(measures.get("part") or "")
    variant = Faulty.INPUT_SCALE if measures.get("scale") else PARTS.get(part, Faulty.SEVERAL)
    certain = bool(measures.get("certain")) and variant is not Faulty.DATA
    is_model_alone = variant is Faulty.MODEL and bool(measures.get("update_fails"))
    rows = {name.replace("_", " "): value for name, value in measures.items() if name.startswith(("as_it_is", "our_"))}
    yield rule.finding(
        experiment.sentence,
        cause=MODEL_AND_NOT_UPDATE if is_model_alone else CAUSES[variant],
        fix=FIXES[variant],
        subject=Subject("loop", " and ".join(part.split("+"))),
        evidence=[*(Evidence(name, str(row)) for name, row in rows.items()), Evidence("compared", experiment.method)],
        severity=Severity.ERROR if certain else Severity.WARNING,
        confidence=Confidence.CERTAIN if certain else Confidence.LIKELY,
        variant=variant,
    )
