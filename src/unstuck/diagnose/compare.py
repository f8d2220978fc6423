"""`unstuck compare`: two versions of a program under the same seeds: where they first differ, and which is better."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from unstuck.diagnose.script import NoRun, has_trained, prepare
from unstuck.events import OptimizerSeen, Place
from unstuck.findings.curve import Curve
from unstuck.findings.fingerprints import Fingerprint, Kind
from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, NamedCurve, Status, Table
from unstuck.interventions.probe_model import TakeFingerprints
from unstuck.interventions.seeds import Seed
from unstuck.regular import LARGEST_SCRIPT, read_regular
from unstuck.trials.context import Context, Tell
from unstuck.trials.runner import Outcome, Program, Runner, Variant

STEPS = 200
FEWEST = 5
SEEDS = 3
SHARE = 0.8
EXACT_STEPS = 3
"""The first steps are compared tensor by tensor; later ones if the losses say that they differ there."""
MOST_ROWS = 10
ANOTHER_SIZE = 1.5
"""Where the weights began differently everything differs; then only tensors of so many times the size count."""
ORDER = {kind: number for number, kind in enumerate(Kind)}


class Version(msgspec.Struct, frozen=True):
    """One of the two: how it is called in the report, and what is run."""

    label: str
    program: Program


class Difference(msgspec.Struct, frozen=True):
    """The same thing in both versions; None where one does not have it."""

    old: Fingerprint | None
    new: Fingerprint | None

    @property
    def either(self) -> Fingerprint:
        found = self.new or self.old
        assert found is not None
        return found

    @property
    def ratio(self) -> float | None:
        """How many times as large it is in the new version."""
        if self.old is None or self.new is None or not self.old.size or self.new.size is None:
            return None
        return self.new.size / self.old.size

    @property
    def is_beyond_chance(self) -> bool:
        """Would it differ so much if only other random numbers had been drawn?"""
        if self.old is None or self.new is None or self.old.shape != self.new.shape:
            return True
        if (self.old.size is None) != (self.new.size is None):
            return True
        ratio = self.ratio
        return ratio is not None and not 1 / ANOTHER_SIZE <= ratio <= ANOTHER_SIZE


def compare(
    old: Version, new: Version, folder: Path, seconds: float, tell: Tell, watch: Callable[[Variant, Path], None]
) -> Experiment:
    """Run both under the same seeds. Raises `NoRun`, and `NoTime` if the budget is too short for that."""
    began = time.monotonic()
    with Runner(old.program, folder / "old") as before, Runner(new.program, folder / "new") as after:
        contexts = (Context(before, seconds, tell), Context(after, seconds, tell))
        for context, runner in zip(contexts, (before, after), strict=True):
            context.watch = watch
            first = context.learn_pace()
            if not has_trained(first):
                raise NoRun(runner.program, first)
            prepare(context, runner, first)
        # One after the other, since trials of each take all cores.
        steps = min(context.steps_for(2 * SEEDS, SHARE, STEPS, least=FEWEST) for context in contexts)
        runs = []
        for version, context in zip((old, new), contexts, strict=True):
            tell(f"running {version.label} from {SEEDS} seeds")
            runs.append(_run(context, steps))
        found = first_differences(*(fingerprints_of(of_version[0]) for of_version in runs))
        if found and found[0].either.step >= EXACT_STEPS:  # known by its loss only: look again, at that step
            at = found[0].either.step
            tell(f"looking closer at step {at}")
            looking = Variant("closer", (Seed(0), TakeFingerprints(max(0, at - 1), at)))
            again = [fingerprints_of(context.run([looking], at + 1)[0]) for context in contexts]
            found = first_differences(*again) or found
    return _Answer(old, new, runs, found, steps, time.monotonic() - began).experiment()


def _run(context: Context, steps: int) -> list[Outcome]:
    exact = TakeFingerprints(0, EXACT_STEPS - 1)
    variants = [Variant(f"seed-{number}", (Seed(number), *([exact] * (not number)))) for number in range(SEEDS)]
    return context.run(variants, steps)


def fingerprints_of(outcome: Outcome) -> list[Fingerprint]:
    """What a run with `TakeFingerprints` noted."""
    try:
        return msgspec.convert(outcome.notes.get("fingerprints") or [], list[Fingerprint])
    except msgspec.ValidationError:  # the program can write there too
        return []


def first_differences(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> list[Difference]:
    """What differs at the first step at which anything does, in the order in which it came."""
    steps = sorted({mark.step for mark in old} | {mark.step for mark in new})
    last = min(max((mark.step for mark in marks), default=-1) for marks in (old, new))
    for step in steps:
        if step > last:
            break
        found = list(_at_step([mark for mark in old if mark.step == step], [mark for mark in new if mark.step == step]))
        if found:
            return found
    return []


def _at_step(old: Sequence[Fingerprint], new: Sequence[Fingerprint]) -> list[Difference]:
    ours, theirs = {mark.key: mark for mark in old}, {mark.key: mark for mark in new}
    keys = [*theirs, *(key for key in ours if key not in theirs)]
    pairs = [Difference(ours.get(key), theirs.get(key)) for key in keys]
    return [pair for pair in pairs if pair.old is None or pair.new is None or not pair.old.is_same(pair.new)]


class _Answer:
    """Puts the comparison into words."""

    def __init__(
        self,
        old: Version,
        new: Version,
        runs: Sequence[Sequence[Outcome]],
        found: Sequence[Difference],
        steps: int,
        seconds: float,
    ) -> None:
        self._old, self._new = old, new
        self._runs = runs
        self._found = found
        losses = [{one.step for one in fingerprints_of(each[0]) if one.kind is Kind.LOSS} for each in runs]
        self._compared = len(losses[0] & losses[1])
        """Steps of which both versions have a loss."""
        self._steps, self._seconds = min(steps, *(max(1, len(each[0].curve.losses)) for each in runs)), seconds
        starts = [one for one in found if one.either.kind is Kind.WEIGHT]
        self._other_start = bool(starts)
        """Do the weights begin differently? Then all that follows differs too."""
        beyond = [one for one in found if one.is_beyond_chance]
        self._telling = beyond if self._other_start else list(found)

    def experiment(self) -> Experiment:
        curves = [
            NamedCurve(version.label, outcome.curve)
            for version, outcomes in zip((self._old, self._new), self._runs, strict=True)
            for outcome in outcomes[:1]
            if outcome.curve.losses
        ]
        first = self._telling[0].either if self._telling else None
        return Experiment(
            name="compare",
            verdict=self._verdict(),
            sentence=" ".join(filter(None, (self._where(), self._which_is_better()))),
            method=f"both versions from {SEEDS} seeds, {self._steps} steps each; tensor by tensor with the first seed",
            curves=tuple(curves),
            measures=self._measures(),
            table=self._table(),
            caveats=tuple(self._caveats()),
            seconds=self._seconds,
            place=Place(first.path, first.line, 1) if first is not None and first.path else None,
        )

    def _verdict(self) -> ExperimentVerdict:
        if not self._found:
            return ExperimentVerdict.THE_SAME if self._compared else ExperimentVerdict.UNDECIDED
        ends = [_ends(outcomes) for outcomes in self._runs]
        if _all_above(ends[1], ends[0]):
            return ExperimentVerdict.WORSE
        return ExperimentVerdict.BETTER if _all_above(ends[0], ends[1]) else ExperimentVerdict.DIFFERENT

    def _where(self) -> str:
        if not self._found and not self._compared:
            return "Nothing could be compared: no loss was back-propagated by backward() in both versions."
        if not self._found:
            return f"Both compute the same to the last bit in all {self._compared} steps."
        shown = self._telling[0] if self._telling else self._found[0]
        step = shown.either.step
        if self._other_start:
            begins = "They begin with different weights"
            if not self._telling:
                return f"{begins}, drawn by chance; no tensor of step 0 has another shape or size."
            return f"{begins}; the first difference beyond chance at step {step} is {_in_words(shown)}."
        settings = self._settings() if shown.either.kind is Kind.UPDATED else ""
        before = f"They are equal to the last bit until step {step}. The" if step else "The"
        return " ".join(filter(None, (f"{before} first difference, at step {step}, is {_in_words(shown)}.", settings)))

    def _settings(self) -> str:
        """What the optimizers are set to, if it is not the same."""
        ours, theirs = (_optimizers(outcomes[0]) for outcomes in self._runs)
        if ours == theirs or not ours or not theirs:
            return ""
        return f"The update is by {', '.join(ours)} in the old version and by {', '.join(theirs)} in the new one."

    def _which_is_better(self) -> str:
        ends = [_ends(outcomes) for outcomes in self._runs]
        if not self._found or not all(ends):
            return ""
        words = [
            f"{version.label} {_range(values)}" for version, values in zip((self._old, self._new), ends, strict=True)
        ]
        verdict = self._verdict()
        then = {
            ExperimentVerdict.WORSE: f"{self._new.label} is worse with every seed.",
            ExperimentVerdict.BETTER: f"{self._new.label} is better with every seed.",
        }.get(verdict, "The seeds differ as much as the versions.")
        return f"The loss ends at: {'; '.join(words)}. {then}"

    def _measures(self) -> dict[str, Measure]:
        first = self._telling[0].either if self._telling else None
        return {
            "first_difference": self._found[0].either.step if self._found else None,
            "what": f"{first.kind} {first.name}" if first is not None else "",
            "equal_weights_at_first": not self._other_start,
            "steps": self._steps,
            "new_lines": ", ".join(map(str, self._changed_lines()[:12])),
        }

    def _changed_lines(self) -> list[int]:
        """Lines of the new script that the old one does not have."""
        texts = [_lines_of(version.program) for version in (self._old, self._new)]
        matcher = difflib.SequenceMatcher(a=texts[0], b=texts[1], autojunk=False)
        blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
        return [line for _, _, _, begin, end in blocks for line in range(begin + 1, max(end, begin + 1) + 1)]

    def _table(self) -> Table | None:
        rows = tuple(_row(one) for one in self._telling[:MOST_ROWS])
        return Table(("differs first", "old", "new"), rows) if rows else None

    def _caveats(self) -> list[str]:
        said = []
        if self._other_start:
            said.append(
                "With other initial weights, everything after them differs a little; only what has another shape or "
                f"{ANOTHER_SIZE:g} times the size is listed."
            )
        for version, outcomes in zip((self._old, self._new), self._runs, strict=True):
            if any(outcome.failure or outcome.status is Status.CRASHED for outcome in outcomes):
                said.append(f"{version.label} did not run to its end: {outcomes[0].last_line}")
        return said


def _optimizers(outcome: Outcome) -> list[str]:
    """Each as `Adam(lr=0.01, weight decay 0.1)`."""
    record = outcome.record_or_none()
    seen = {event.optimizer: event for event in record.of(OptimizerSeen)} if record is not None else {}
    said = []
    for event in seen.values():
        groups = {
            ", ".join(
                filter(
                    None,
                    (
                        f"lr={group.rate:g}" if group.rate is not None else "",
                        f"weight_decay={group.weight_decay:g}" if group.weight_decay else "",
                        f"momentum={group.momentum:g}" if group.momentum else "",
                        f"eps={group.eps:g}" if group.eps is not None else "",
                    ),
                )
            ): None
            for group in event.groups
        }
        said.append(f"{event.kind}({'; '.join(groups)})")
    return said


def _row(one: Difference) -> tuple[Measure, ...]:
    mark = one.either
    what = mark.name if mark.kind is Kind.LOSS else f"{mark.kind} {mark.name}"
    return what, _value(one.old), _value(one.new)


def _value(mark: Fingerprint | None) -> str:
    if mark is None:
        return "not there"
    shape = "x".join(map(str, mark.shape)) or "one number"
    return f"{shape}, {mark.size:.4g}" if mark.size is not None else f"{shape}, not finite"


def _in_words(one: Difference) -> str:
    mark = one.either
    place = f" ({mark.path}:{mark.line})" if mark.path else ""
    what = f"{_article(mark.kind)} {mark.name}{place}"
    if one.old is None or one.new is None:
        return f"{what}, which only the {'new' if one.old is None else 'old'} version has"
    if one.old.shape != one.new.shape:
        shapes = ["x".join(map(str, side.shape)) or "one number" for side in (one.old, one.new)]
        return f"{what}: {shapes[0]} in the old version and {shapes[1]} in the new one"
    sizes = ["not finite" if side.size is None else f"{side.size:.6g}" for side in (one.old, one.new)]
    if sizes[0] == sizes[1]:
        return f"{what}, whose elements differ or have another order (root mean square {sizes[0]} in both)"
    return f"{what}: root mean square {sizes[0]} in the old version and {sizes[1]} in the new one"


def _article(kind: Kind) -> str:
    return {
        Kind.WEIGHT: "the initial weight",
        Kind.INPUT: "the input",
        Kind.OUTPUT: "the output of",
        Kind.TARGET: "what is compared in",
        Kind.LOSS: "the value of the",
        Kind.GRADIENT: "the gradient of",
        Kind.UPDATED: "what the step makes of",
    }[kind]


def _ends(outcomes: Sequence[Outcome]) -> list[float]:
    """Where the loss ends from each seed; a run that ended non-finite is as bad as can be."""
    curves: list[Curve] = [outcome.curve for outcome in outcomes if outcome.curve.losses]
    return [curve.end if curve.end is not None else float("inf") for curve in curves]


def _all_above(high: Sequence[float], low: Sequence[float]) -> bool:
    """Is every one of these above all of those, and by more than they differ among themselves?"""
    if len(high) < SEEDS or len(low) < SEEDS:
        return False
    finite = [value for value in (*high, *low) if value != float("inf")]
    spread = max((max(side) - min(side) for side in (high, low) if float("inf") not in side), default=0.0)
    scale = max(map(abs, finite), default=0.0)
    return min(high) - max(low) > max(spread, 1e-3 * scale)


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    if low == float("inf"):
        return "NaN or infinity"
    return f"{low:.4g}" if f"{low:.4g}" == f"{high:.4g}" else f"{low:.4g} to {high:.4g}"


def _lines_of(program: Program) -> list[str]:
    if program.as_module:
        return []
    try:
        return read_regular(program.target, LARGEST_SCRIPT).decode(errors="replace").splitlines()
    except OSError:
        return []
