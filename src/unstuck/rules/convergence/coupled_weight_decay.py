"""O06: Adam with weight decay where AdamW is meant, or decay on biases and norm layers."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import OptimizerSeen, Setup
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared import objects
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.facts import OptimizerMade
from unstuck.source.reader import knowledge
from unstuck.source.values import Const, Group, Instance, Parameters, Value

rule = Rule(
    code="O06",
    name="coupled-weight-decay",
    title="Adam with weight decay where AdamW is meant, or decay on biases and norm layers",
    severity=Severity.ADVICE,
    needs=(OptimizerSeen,),
)

COUPLED = (
    "Adam adds the decay to the gradient and then divides by the gradient's size, so weights with large gradients "
    "barely decay; AdamW shrinks every weight by the same share."
)
EVERYTHING = (
    "On biases and norm gains, decay does not regularize; it only removes scale. Only matrices (two or more "
    "dimensions) should decay."
)
USE_ADAMW = "Use AdamW, with a larger weight_decay (0.01 to 0.1 is usual): it is not divided by the gradient's size."
SPLIT = (
    "Use two parameter groups: [{{'params': [p for p in {model}.parameters() if p.dim() > 1]}}, "
    "{{'params': [p for p in {model}.parameters() if p.dim() <= 1], 'weight_decay': 0.0}}]."
)
DECAY_POSITION = {"Adam": 4, "AdamW": 4}
STRONG_DECAY = 0.01
"""The default of AdamW; a smaller decay on a gain is harmless."""


@rule.in_setup
def in_setup(setup: Setup) -> Iterator[Finding]:
    """The parameter groups of live optimizers."""
    yield from _in_groups(setup)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The same, as recorded in the run."""
    yield from _in_groups(record.setup())


def _in_groups(setup: Setup) -> Iterator[Finding]:
    for optimizer in setup.optimizers:
        strongest = max((group.weight_decay for group in optimizer.groups), default=0.0)
        if optimizer.kind == "Adam" and strongest > 0 and not any(group.decoupled for group in optimizer.groups):
            yield rule.finding(
                _coupled_message(strongest),
                cause=COUPLED,
                fix=USE_ADAMW,
                subject=Subject("optimizer", optimizer.optimizer),
                place=optimizer.place,
                evidence=[Evidence("weight_decay", strongest)],
            )
        elif optimizer.kind == "AdamW":
            yield from _on_gains(setup, optimizer)


def _on_gains(setup: Setup, optimizer: OptimizerSeen) -> Iterator[Finding]:
    """A decay above the default, so chosen by the user, that also applies to norm layers."""
    owners = objects.owners(setup)
    decayed = [(group, fact) for group, facts in objects.by_group(optimizer) for fact in facts if group.weight_decay]
    gains = [
        (group, fact, owners[fact.key].kind)
        for group, fact in decayed
        if fact.trainable and fact.key in owners and objects.is_norm(owners[fact.key].kind)
    ]
    decay = max((group.weight_decay for group, *_ in gains), default=0.0)
    if decay > STRONG_DECAY:
        kinds = sorted({kind for *_, kind in gains})
        yield rule.finding(
            f"AdamW's weight_decay={decay:g} also applies to {len(gains)} gains and biases of {', '.join(kinds)}.",
            cause=EVERYTHING,
            fix=SPLIT.format(model="model"),
            subject=Subject("optimizer", optimizer.optimizer),
            place=optimizer.place,
            evidence=[
                Evidence("weight_decay", decay, "", STRONG_DECAY),
                Evidence("for example", objects.listed([fact.name for _, fact, _ in gains])),
            ],
        )


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """weight_decay passed to Adam as a number, or a strong one to AdamW for all parameters of a model with norms."""
    for made in script.facts.optimizers:
        kind, decay = made.optimizer.last, _decay(made.optimizer)
        if decay is None or not made.optimizer.kind.startswith("torch.optim."):
            continue
        if kind == "Adam" and made.optimizer.kwargs.get("decoupled_weight_decay", Const(False)) == Const(False):
            yield _coupled(script, made, decay)
        elif kind == "AdamW" and decay >= STRONG_DECAY:
            yield from _on_everything(script, made, decay)


def _decay(optimizer: Instance) -> float | None:
    """The decay of the optimizer or of one of its groups, if it is a number above 0."""
    position = DECAY_POSITION.get(optimizer.last)
    positional = optimizer.args[position] if position and len(optimizer.args) > position else None
    params = optimizer.args[0] if optimizer.args else optimizer.kwargs.get("params")
    given = [optimizer.kwargs.get("weight_decay", positional), *_group_decays(params)]
    numbers = [value.value for value in given if isinstance(value, Const)]
    return max((float(n) for n in numbers if isinstance(n, int | float) and n > 0), default=None)


def _group_decays(params: Value | None) -> Iterator[Value]:
    for group in params.items if isinstance(params, Group) else ():
        if isinstance(group, Group) and group.keys is not None and "weight_decay" in group.keys:
            yield group.items[group.keys.index("weight_decay")]


def _coupled_message(decay: float) -> str:
    return f"Adam adds weight_decay={decay:g} to the gradient instead of decaying the weights."


def _coupled(script: Script, made: OptimizerMade, decay: float) -> Finding:
    return rule.finding(
        _coupled_message(decay),
        cause=COUPLED,
        fix=fix_with(USE_ADAMW, Editor(script).rename_callee(made.place, "AdamW"), "unsafe"),
        subject=Subject("optimizer", made.optimizer.label or "Adam"),
        place=made.place,
        evidence=[Evidence("weight_decay", decay)],
    )


def _on_everything(script: Script, made: OptimizerMade, decay: float) -> Iterator[Finding]:
    params = made.parameters
    whole = isinstance(params, Parameters) and not params.partial
    owner = params.owner if isinstance(params, Parameters) else None
    if not whole or not isinstance(owner, Instance) or not owner.label:
        return
    norms = sorted({part.last for part in knowledge.parts(owner) if part.last in knowledge.NORMS})
    if norms:
        yield rule.finding(
            f"AdamW's weight_decay={decay:g} applies to every parameter of {owner.label}, including the gains of "
            f"{', '.join(norms)}.",
            cause=EVERYTHING,
            fix=SPLIT.format(model=owner.label),
            subject=Subject("optimizer", made.optimizer.label or "AdamW"),
            place=made.place,
            evidence=[Evidence("weight_decay", decay, "", STRONG_DECAY)],
        )
