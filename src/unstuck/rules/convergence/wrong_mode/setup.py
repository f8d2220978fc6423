"""O05 in live objects: a model in eval mode before training, and dropout that eval mode does not switch off."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Setup
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.rules.convergence.wrong_mode import Mode, dropout, effect_of_eval, rule
from unstuck.rules.shared import objects
from unstuck.rules.shared.modes import MEANT_RANDOM


def find(setup: Setup) -> Iterator[Finding]:
    """Both variants."""
    yield from _dropout_on(setup)
    for model in setup.models if setup.optimizers else ():
        dependent = [module for module in model.modules if _depends_on_mode(module.kind, module.numbers)]
        trains = any(fact.trainable for fact in model.parameters)
        if not dependent or not trains or any(module.training for module in model.modules):
            continue
        names = objects.listed([module.name for module in dependent])
        yield rule.finding(
            f"{model.model} is in eval mode; if you train it like this, {names} will not work as in training.",
            cause=effect_of_eval(dependent[0].kind),
            fix="Call train() on the model before training.",
            subject=Subject("module", f"mode of {model.model}"),
            place=model.place,
            severity=Severity.WARNING,
            confidence=Confidence.LIKELY,
            variant=Mode.STARTS_IN_EVAL,
        )


def _dropout_on(setup: Setup) -> Iterator[Finding]:
    """Two passes in eval mode differed because of these calls."""
    kinds = " ".join(module.kind for model in setup.models for module in model.modules)
    for call in setup.trial.dropping if setup.trial else ():
        if MEANT_RANDOM.search(kinds):
            continue
        attention = call.function == "scaled_dot_product_attention"
        argument = "dropout_p=p if self.training else 0.0" if attention else "training=self.training"
        yield rule.finding(
            f"{call.function} drops {call.share:.0%} of the values even in eval mode: two passes over the same batch "
            "differ.",
            cause="It does not see model.eval(), so predictions are random." if attention else dropout.FUNCTION_CAUSE,
            fix=f"Pass {argument}, or use an nn.Dropout created in __init__.",
            subject=Subject.at("call", call.function, call.place),
            place=call.place,
            evidence=[Evidence("share dropped in eval mode", call.share)],
            variant=Mode.DROPOUT_ALWAYS_ON,
        )


def _depends_on_mode(kind: str, numbers: dict[str, float]) -> bool:
    return numbers.get("p", 0) > 0 if "Dropout" in kind else "BatchNorm" in kind and bool(numbers.get("momentum"))
