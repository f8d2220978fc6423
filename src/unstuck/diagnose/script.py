"""`unstuck diagnose` on a script."""

from __future__ import annotations

import contextlib
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from unstuck.capture.trial.layout import stage_of
from unstuck.diagnose.triage import Triage
from unstuck.findings import Severity
from unstuck.findings.investigation import Investigation
from unstuck.findings.obstacles import obstacle_of, obstacle_sentence
from unstuck.findings.result import LOOKED_FOR
from unstuck.findings.results import Isolation, Status
from unstuck.findings.verdict import Verdict
from unstuck.regular import LARGEST_SCRIPT, read_regular
from unstuck.rule import all_rules
from unstuck.trials.context import Context, Tell
from unstuck.trials.runner import Outcome, Program, Runner, Variant

NOT_BEFORE_FORKING = frozenset(
    {"tensorflow", "jax", "cupy", "ray", "mpi4py", "horovod", "deepspeed", "triton", "wandb"}
)
"""Libraries that start threads or take a device as soon as they are imported."""
LAST_LINES = 12
GIVE = "Give the script that trains, with the arguments that make it train"
PROTECTED = {
    Isolation.OVERLAY: "Your files were not touched: every run wrote to a layer of its own, which is deleted.",
    Isolation.LANDLOCK: "Your files were not touched: every run wrote to a copy of the working directory, which is "
    "deleted, and the kernel refused every write elsewhere, except to shared memory (/dev/shm).",
    Isolation.COPIES: "Every run wrote to a copy of the working directory, which is deleted. This system cannot stop C "
    "libraries and other programs from writing elsewhere.",
}
"""What each of them guarantees."""
LONG_START = 3.0
"""Seconds to the first step from which the progress line says that imports are shared."""


class NoRun(Exception):
    """The program did not get to train; its text is one sentence, then what the program printed last."""

    def __init__(self, program: Program, outcome: Outcome) -> None:
        words = {
            Status.FAILED: "could not be run",
            Status.KILLED: "had not taken a training step when the budget was used up; give it more with --budget",
            Status.CRASHED: "crashed before its first training step",
        }
        if outcome.exit_code:
            words[Status.EXITED] = f"exited with code {outcome.exit_code} before its first training step"
        status = Status.KILLED if outcome.ran_out_of_time else outcome.status
        what = words.get(status, f"ended without a training step that can be seen: {LOOKED_FOR}. {GIVE}")
        lines = outcome.output.replace(stage_of(outcome.folder), "").strip().splitlines()
        explained = filter(None, [_refusal(outcome), _obstacle(outcome)])
        super().__init__("\n".join([f"{program.target} {what}.", *explained, *lines[-LAST_LINES:]]))


def has_trained(outcome: Outcome) -> bool:
    """Did it reach a backward?"""
    return bool(outcome.curve.losses or outcome.notes.get("losses") or outcome.notes.get("probe"))


def diagnose(
    program: Program,
    folder: Path,
    seconds: float,
    tell: Tell,
    watch: Callable[[Variant, Path], None],
    *,
    learned: Tell = lambda text: None,
    only_proofs: bool = False,
) -> Investigation:
    """Find out why a program does not learn, within so many seconds; `only_proofs`: without experiments."""
    with Runner(program, folder) as runner:
        context = Context(runner, seconds, tell)
        context.watch = watch
        context.learned = learned
        all_rules()  # loaded while torch is being imported over there, and not when somebody waits for a report
        done = _OfScript(context, runner, only_proofs).answer()
    return msgspec.structs.replace(done, seconds=context.seconds)


class _OfScript(Triage):
    answers_when_interrupted = True

    def __init__(self, context: Context, runner: Runner, only_proofs: bool) -> None:
        super().__init__(context, runner.folder, only_proofs=only_proofs)
        self._runner = runner
        self._program = runner.program

    def without_record(self, outcome: Outcome) -> Exception:
        return NoRun(self._program, outcome)

    def prepare(self, outcome: Outcome) -> None:
        prepare(self._context, self._runner, outcome)

    def accept(self, outcome: Outcome, verdict: Verdict) -> None:
        if not has_trained(outcome) and all(d.severity is Severity.ADVICE for d in verdict.diagnoses):
            raise NoRun(self._program, outcome)

    @property
    def isolation(self) -> Isolation | None:
        return self._runner.isolation

    def protected(self, outcome: Outcome) -> str:
        isolation = self._runner.isolation or Isolation.COPIES
        return " ".join(filter(None, (_refusal(outcome), PROTECTED[isolation], self._compared())))

    def _compared(self) -> str:
        """What a comparison of the working directory shows, where the kernel promises nothing."""
        files = self._runner.files
        if files is None:
            return ""
        changed = files.changed()
        if not changed:
            return f"None of the {files.count:,} files compared in the working directory changed."
        more = f" and {len(changed) - 3:,} more" if len(changed) > 3 else ""
        return f"These files in the working directory changed meanwhile: {', '.join(changed[:3])}{more}."

    @property
    def again(self) -> str:
        words = ["-m", self._program.target] if self._program.as_module else [self._program.target]
        return shlex.join([*words, *self._program.arguments])

    def next_command(self, verdict: Verdict) -> str:
        script, principal = self.again, verdict.principal
        if principal is None and verdict.learns:
            return f"unstuck run {script}"
        if principal is None:
            # A run without a known cause: people see in the data what no rule knows.
            return f"unstuck report {shlex.quote(self._runner.folder.name)} --html page.html"
        fix = principal.lead.fix
        if not fix.edits:
            return f"unstuck diagnose {script}"
        flag = "--fix" if fix.safety == "safe" else "--unsafe-fixes"
        return f"unstuck lint {flag} {shlex.quote(fix.edits[0].path)} && unstuck diagnose {script}"


def _refusal(outcome: Outcome) -> str:
    """What a trial was not allowed to write, if that ended it."""
    refused = outcome.notes.get("refused")
    return f"The script was stopped by a write that trials are refused here: {refused}." if refused else ""


def _obstacle(outcome: Outcome) -> str:
    """What the script lacks here, if that ended it."""
    record = outcome.record_or_none()
    crash = record.crash if record is not None else None
    if crash is None:
        return ""
    line = ""
    if crash.place is not None:
        with contextlib.suppress(OSError, IndexError):
            text = read_regular(crash.place.path, LARGEST_SCRIPT).decode(errors="replace")
            line = text.splitlines()[crash.place.line - 1]
    found = obstacle_of(crash, line)
    return obstacle_sentence(found, crash, in_trial=True) if found is not None else ""


def prepare(context: Context, runner: Runner, outcome: Outcome) -> None:
    """Import once for all trials to come what this one has imported."""
    if context.start_seconds > LONG_START:
        context.tell("importing what it imports, once for all runs")
    context.starts_sooner(runner.prepare(_harmless(outcome.notes.get("modules") or []), context.deadline))


def _harmless(modules: Sequence[str]) -> list[str]:
    """Modules that may be imported before the process forks: none that start threads or take a device at once."""
    return [name for name in modules if name.partition(".")[0] not in NOT_BEFORE_FORKING]


def seconds_of(text: str) -> float:
    """`90`, `90s`, `5m` or `1h` in seconds. Raises ValueError."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1:]]) if text[-1:] in units else (text, 1.0)
    value = float(number) * unit
    if not math.isfinite(value) or value <= 0:
        raise ValueError(text)
    return value
