"""R06: a training script that sets no seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Backward, LoaderSeen, ModelSeen, OptimizerSeen, OptimizerStep, Place, Seeded
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.source import Script
from unstuck.source.trace import Ability, Loop, events_in, loops_in, reads_all

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment

rule = Rule(
    code="R06",
    name="unseeded",
    title="no seed is set, so no two runs are the same",
    severity=Severity.ADVICE,
    hygiene=True,
    needs=(OptimizerStep,),
)

CAUSE = (
    "Initial weights, data order and dropout differ in every run, so a different result may come from your "
    "change or from chance."
)
FIX = "Call torch.manual_seed(0) before building the model (it also fixes the order of a DataLoader)."
CHANGING = "The script uses a different seed in each run, so its results still vary."
FIXED_NUMBER = "Use a constant seed such as torch.manual_seed(0), or print the seed if it must vary."
SEED_THAT_CHANGES = "the seed that the script sets"
NOT_BY_SEEDS = (
    "The runs differ even with every generator seeded: an operation is not deterministic, or the script "
    "depends on the clock, the order of a set, or another external input."
)
DETERMINISTIC = (
    "Call torch.use_deterministic_algorithms(True), which reports such operations, and sort the contents of "
    "sets and folders."
)
COMMENT = pattern(r"#.*")
NOT_TORCH = frozenset({"random.seed", "numpy.random.seed"})
"""Seeds that do not affect torch."""


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """The script itself trains, and nothing it calls has `seed` in its name, or nothing of torch's."""
    loop = _training(script)
    if loop is None:
        return
    seeding = [called.name for called in script.facts.calls if "seed" in called.name.lower()]
    if seeding and set(seeding) <= NOT_TORCH:
        names = " and ".join(sorted(set(seeding)))
        yield _finding(f"Nothing seeds torch: {names} does not affect it.", script, loop)
    elif not seeding and "seed" not in COMMENT.sub("", script.text).lower():
        yield _finding("This script trains without setting a seed.", script, loop)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """The program trained, drew numbers from torch's generator and never seeded it."""
    seeded = list(record.of(Seeded))
    if not any(event.generator == "torch" and event.seed is None for event in seeded):
        return
    if not any(record.of(OptimizerStep)) or record.started.watched == "objects":
        return  # live objects are trained separately, with our random numbers
    others = sorted({f"{event.generator}.seed" for event in seeded if event.seed is not None})
    reach = f": {' and '.join(others)} does not affect it" if others else ", although the run used random numbers"
    optimizer = next(record.of(OptimizerSeen), None)
    yield rule.finding(
        f"Nothing seeded torch{reach}.",
        cause=CAUSE,
        fix=FIX,
        subject=Subject("loop", f"seed of {record.started.script}"),
        place=optimizer.place if optimizer else None,
        evidence=[Evidence("what differs from run to run", _random_parts(record))],
    )


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """Two runs of the same script had different losses."""
    from unstuck.findings.results import ExperimentVerdict  # here, since lint loads this file and not that one

    if experiment.name != "seeds" or experiment.verdict != ExperimentVerdict.NOT_REPRODUCIBLE:
        return
    measures = experiment.measures
    if not measures.get("script"):
        return  # live objects: how the program seeds them is unknown
    seeded = bool(measures.get("once_seeded"))
    changing = SEED_THAT_CHANGES in str(measures.get("source"))
    yield rule.finding(
        f"Two runs of the same script differ from step {measures['first_difference']} on.",
        cause=CAUSE if seeded else CHANGING if changing else NOT_BY_SEEDS,
        fix=FIX if seeded else FIXED_NUMBER if changing else DETERMINISTIC,
        subject=Subject("loop", f"seed of {measures['script']}"),
        place=experiment.place,
        evidence=[
            Evidence("what differs first", str(measures.get("source") or "nothing recorded but the loss")),
            Evidence("equal when every generator is seeded", "yes" if seeded else "no"),
            Evidence("deviation over seeds", measures.get("noise") or 0.0, "of the last loss"),
        ],
    )


def _random_parts(record: Record) -> list[str]:
    models = {event.model: event for event in record.of(ModelSeen)}
    loaders = {event.loader: event for event in record.of(LoaderSeen)}
    drops = [module for model in models.values() for module in model.modules if "Dropout" in module.kind]
    parts = {
        "initial weights": bool(models),
        "order of the data": any("Random" in loader.sampler for loader in loaders.values()),
        "dropout": bool(drops),
        "workers": any(loader.workers for loader in loaders.values()),
    }
    return [name for name, present in parts.items() if present]


def _training(script: Script) -> Loop | None:
    """The first training loop that this file runs, if all of it could be read."""
    for loop in loops_in(script.facts.trace[: script.facts.reached]):
        kinds = {type(item.event) for item in events_in(loop.body)}
        if {Backward, OptimizerStep} <= kinds:
            return loop if reads_all(loop.body, Ability.STEP) else None
    return None


def _finding(message: str, script: Script, loop: Loop) -> Finding:
    return rule.finding(
        message,
        cause=CAUSE,
        fix="Call torch.manual_seed(0) before building the model (it also fixes the order of a DataLoader).",
        subject=Subject("loop", f"seed of {script.path}"),
        place=_place(script, loop),
    )


def _place(script: Script, loop: Loop) -> Place:
    """Where this file creates its optimizer, else where it starts training."""
    made = [item.place for item in script.facts.optimizers]
    start = min(item.time for item in events_in(loop.body))
    calls = [called.place for called in script.facts.calls if called.time < start]
    own = [place for place in (*made, loop.place, *reversed(calls)) if place.path == script.path]
    return own[0] if own else loop.place
