"""G07: recurrent, transformer or policy-gradient training without any clipping."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from unstuck.events import Backward, Clip, LossCall, OptimizerStep
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule, with_change
from unstuck.rules.gradients.clip_too_loose import worst_gradient
from unstuck.rules.shared import dynamics, loop_order
from unstuck.source import Script
from unstuck.source.reader import knowledge
from unstuck.source.trace import Ability, Happened, Loop, events_in, reads_all

rule = Rule(
    code="G07",
    name="clip-missing",
    title="recurrent, transformer or policy-gradient training without gradient clipping",
    severity=Severity.ERROR,
    explains=("G08", "G10", "G18", "O22", "O25", "O26", "R08"),
    needs=(OptimizerStep,),
    needs_one_optimizer=True,
)

CLIPS = pattern(r"clip|clamp|grad_norm|register_hook", re.I)
SPIKY = {
    "RNN": "a recurrent network", "LSTM": "a recurrent network", "GRU": "a recurrent network",
    "RNNCell": "a recurrent network", "LSTMCell": "a recurrent network", "GRUCell": "a recurrent network",
    "Transformer": "a transformer", "TransformerEncoder": "a transformer", "TransformerDecoder": "a transformer",
    "TransformerEncoderLayer": "a transformer", "TransformerDecoderLayer": "a transformer",
}  # fmt: skip
FAMILIES = ((r"lstm|gru|rnn", "a recurrent network"), (r"attention|transformer", "a transformer"))
"""Class names in a live model."""
CAUSE = (
    "Its gradients are products over many time steps, layers or rewards, so occasionally one is a hundred "
    "times larger than usual. A single such step can undo an hour of training."
)
FIX = "Call torch.nn.utils.clip_grad_norm_({parameters}, max_norm=1.0) between backward() and step()."


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A loop that could be read completely trains such a model, and nothing in the file clips."""
    if any(CLIPS.search(call.name) for call in script.facts.calls):
        return
    for loop in script.training_loops:
        happened = list(events_in(loop.body))
        steps = [item for item in happened if isinstance(item.event, OptimizerStep)]
        if steps and reads_all(loop.body, Ability.RESCALE):
            yield from _finding(script, loop, happened)


def _finding(script: Script, loop: Loop, happened: list[Happened]) -> Iterator[Finding]:
    backwards = [item for item in happened if isinstance(item.event, Backward) and item.value is not None]
    models = loop_order.modules_behind(item.value for item in backwards if item.value is not None)
    kinds = {SPIKY[part.last]: model for model in models for part in knowledge.parts(model) if part.last in SPIKY}
    label = next((model.label for model in kinds.values()), "") or "model"
    what = next(iter(kinds), "") or ("a policy" if _learns_policy(script, loop) else "")
    if what and backwards:
        place = backwards[0].event.place
        yield rule.finding(
            f"This loop trains {what} and never clips its gradients.",
            cause=CAUSE,
            fix=FIX.format(parameters=f"{label}.parameters()"),
            subject=Subject.at("loop", "training loop", loop.place),
            place=place,
            severity=Severity.ADVICE,
            confidence=Confidence.LIKELY,
        )


def _learns_policy(script: Script, loop: Loop) -> bool:
    """Does the loop compute log-probabilities of sampled actions?"""
    return {".log_prob", ".sample"} <= _calls_by_loop(script).get(id(loop), set())


@lru_cache(maxsize=1)
def _calls_by_loop(script: Script) -> dict[int, set[str]]:
    """The names of what is called in each loop, found once for all loops."""
    names: dict[int, set[str]] = {}
    for call in script.facts.calls:
        for loop in call.loops:
            names.setdefault(id(loop), set()).add(call.name)
    return names


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Such a model, no clipping, and a spike that raised the loss. A stable run is not reported."""
    what = _trained(record)
    if not what or any(record.of(Clip)) or dynamics.sole_optimizer(record) is None:
        return
    worst = worst_gradient(record)
    if worst is None:
        return
    usual = dynamics.rounded(worst.usual)
    after = (
        "the loss was not finite after it" if worst.after is None else f"the loss rose to {worst.after:.4g} after it"
    )
    yield rule.finding(
        f"This loop trains {what} without clipping: at step {worst.step + 1} the gradient norm was "
        f"{worst.norm:.3g}, {worst.norm / worst.usual:,.0f} times the usual norm, and {after}.",
        cause=CAUSE,
        fix=f"Call torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={usual}) between backward() and "
        f"step(); {usual} is the norm of a normal step in this run.",
        subject=Subject("loop", "training loop"),
        place=next((backward.place for backward in record.of(Backward) if backward.place), None),
        evidence=[
            Evidence("gradient norm of the spike", worst.norm),
            Evidence("usual norm before it", worst.usual),
            Evidence("loss before", worst.before),
        ],
        severity=Severity.ERROR if worst.after is None else Severity.WARNING,
    )


def _trained(record: Record) -> str:
    """The kind of training with heavy-tailed gradients, if it is one."""
    kinds = " ".join(module.kind for model in record.setup().models for module in model.modules)
    named = next((what for words, what in FAMILIES if re.search(words, kinds, re.I)), "")
    signs = {value > 0 for _, value in dynamics.losses(record) if value == value and value}
    # The loss of a policy gradient is not one of torch's, and its sign changes with the advantage.
    return named or ("a policy" if len(signs) == 2 and not any(record.of(LossCall)) else "")


rule.remedied_by(with_change("ClipGradients", 1.0))
