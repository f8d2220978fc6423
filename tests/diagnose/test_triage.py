"""How an investigation plans its runs, which of them it makes, and in what order it tells what was found."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from unstuck.diagnose.script import seconds_of
from unstuck.diagnose.triage import Triage
from unstuck.events import Place
from unstuck.findings import Confidence, Finding, Severity, Subject, Witness, merge, rank
from unstuck.findings.curve import Curve
from unstuck.findings.investigation import Investigation
from unstuck.findings.result import Result
from unstuck.findings.results import Experiment, ExperimentVerdict, Matter, Proof, ProofVerdict, Status, matters
from unstuck.findings.verdict import Verdict
from unstuck.interventions import KeepGradients, Seed, StopAfter
from unstuck.record.outcome import Achieved, Outcome as TrainingOutcome
from unstuck.rule import find_rule
from unstuck.trials.context import Context
from unstuck.trials.runner import Outcome, Program, Progress, Runner, Variant
from unstuck.trials.trial import StopReason


class Runs:
    """Trials whose outcome is known beforehand: so many steps, each of so many seconds."""

    jobs = 2

    def __init__(self, steps: int, pace: float = 0.01, status: str = "finished") -> None:
        self.steps, self.pace, self.status = steps, pace, status
        self.made: list[Variant] = []

    def run(self, variants: Sequence[Variant], seconds: float, progress: Progress, until: float) -> list[Outcome]:
        self.made += variants
        return [self._outcome(variant) for variant in variants]

    def _outcome(self, variant: Variant) -> Outcome:
        asked = min(change.steps for change in variant.changes if isinstance(change, StopAfter))
        taken = min(asked, self.steps)
        inside = taken * self.pace
        return Outcome(
            variant=variant,
            folder=Path(),
            status=Status.STOPPED if asked <= self.steps else Status(self.status),
            curve=Curve(tuple(range(taken)), (1.0,) * taken),
            seconds=inside + 1.0,
            training_seconds=inside,
        )


def test_no_more_steps_are_planned_than_the_script_takes() -> None:
    context = Context(Runs(30), 100.0)
    assert context.plan(2) == 200
    context.run([Variant("watched")], 100)
    assert context.available_steps == 30
    assert context.plan(2) == 30


def test_a_change_that_ends_the_script_sooner_does_not_shorten_the_others() -> None:
    context = Context(Runs(30), 100.0)
    context.run([Variant("mended", (KeepGradients(),))], 100)
    assert context.available_steps is None


def test_steps_are_planned_by_pace_start_and_time_left() -> None:
    context = Context(Runs(10_000, pace=0.1), 100.0)
    context.run([Variant("watched")], 100)
    assert (context.step_seconds, context.start_seconds) == pytest.approx((0.1, 1.0))
    assert context.plan(4, wanted=300) == 300
    assert context.plan(8, wanted=300) == pytest.approx((100 / 4 - 1) / 0.1, abs=2)
    assert context.plan(100, wanted=300) == 0


def test_a_run_is_made_once() -> None:
    runs = Runs(10_000)
    context = Context(runs, 100.0)
    context.run([Variant("one"), Variant("the same", (Seed(0),))], 100)
    context.run([Variant("again")], 100)
    assert len(runs.made) == 1
    context.run([Variant("longer")], 200)
    context.run([Variant("other seed", (Seed(1),))], 100)
    context.run([Variant("once more", repeat=1)], 100)
    context.run([Variant("changed", (KeepGradients(),))], 100)
    assert len(runs.made) == 5


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("1h", 3600)])
def test_times_are_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5s", "abc", "m", "nan", "inf", "5 minutes"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the command tells it in its own words
        seconds_of(text)


def finding(code: str, severity: Severity) -> Finding:
    rule = find_rule(code)
    assert rule is not None
    seen = rule.finding(f"{code}!", cause="c", fix="f", subject=Subject("loop", code), severity=severity)
    return msgspec.structs.replace(seen, witness=Witness.RUN)


def tried(code: str, subject: str, verdict: str, place: Place | None = None) -> Proof:
    about = (Matter(Subject("loop", subject), place),)
    return Proof(code=code, about=about, verdict=ProofVerdict(verdict), sentence="nothing.", remedy="a change", steps=1)


def answered(found: dict[str, Severity], proofs: dict[str, str]) -> Investigation:
    """What an investigation ends with that has found this and tried that."""
    triage = Triage(Context(Runs(10), 1.0), Path())
    triage._proofs += [tried(code, code, word) for code, word in proofs.items()]
    diagnoses = rank(merge([finding(code, severity) for code, severity in found.items()]), {})
    verdict = triage._final(Verdict(diagnoses=tuple(diagnoses)))
    return Investigation(result=Result(command="diagnose", verdict=verdict))


@pytest.mark.parametrize(
    ("found", "proofs", "principal"),
    [
        ({"O12": Severity.ERROR, "G04": Severity.WARNING}, {}, "O12"),
        ({"O12": Severity.ERROR, "G04": Severity.WARNING}, {"O12": "no effect"}, "G04"),
        ({"O12": Severity.ERROR, "G04": Severity.WARNING}, {"O12": "undecided", "G04": "confirmed"}, "G04"),
        ({"O12": Severity.ERROR, "R06": Severity.ADVICE}, {"O12": "worse"}, "O12"),
        ({"R06": Severity.ADVICE}, {}, None),
        ({"O01": Severity.ERROR, "O03": Severity.WARNING}, {}, "O03"),
    ],
)
def test_what_was_confirmed_is_the_answer_and_what_was_tried_in_vain_comes_last(
    found: dict[str, Severity], proofs: dict[str, str], principal: str | None
) -> None:
    answer = answered(found, proofs).principal
    assert (answer.lead.code if answer else None) == principal


@pytest.mark.parametrize(
    ("word", "severity"),
    [
        (Achieved.GUESSES, Severity.ERROR),
        (Achieved.UNSTABLE, Severity.ERROR),
        (Achieved.SLOWLY, Severity.ERROR),
        (Achieved.LEARNS, Severity.WARNING),
    ],
)
def test_what_a_run_learns_in_spite_of_is_no_error(word: Achieved, severity: Severity) -> None:
    triage = Triage(Context(Runs(10), 1.0), Path())
    triage._proofs.append(tried("G08", "G08", "confirmed"))
    found = merge([finding("G08", Severity.WARNING)])
    (diagnosis,) = triage._final(Verdict(diagnoses=tuple(found), outcomes=(achieved(word),))).diagnoses
    assert (diagnosis.severity, diagnosis.confidence) == (severity, Confidence.CERTAIN)


def achieved(word: Achieved) -> TrainingOutcome:
    return TrainingOutcome(word=word, steps=100, first=2.3, last=2.3)


def test_what_costs_only_memory_is_never_the_cause() -> None:
    memory = msgspec.structs.replace(finding("M03", Severity.WARNING), hygiene=True)
    verdict = Verdict(diagnoses=tuple(rank(merge([memory]), {})), outcomes=(achieved(Achieved.DIVERGES),))
    assert Triage(Context(Runs(10), 1.0), Path())._final(verdict).principal is None
    crash = finding("M21", Severity.ERROR)
    leak = rank(merge([memory, crash]), {"M03": frozenset({"M21"})})
    assert Verdict(diagnoses=tuple(leak)).principal is leak[0]
    assert leak[0].lead.code == "M03", "a leak that ran out of memory is the cause of that"


@pytest.mark.parametrize(
    ("word", "proofs", "principal"),
    [
        (Achieved.GUESSES, {}, "M09"),
        (Achieved.GUESSES, {"M09": "no effect"}, None),
        (Achieved.LEARNS, {}, None),
    ],
)
def test_a_run_in_trouble_is_told_what_only_the_text_shows(
    word: Achieved, proofs: dict[str, str], principal: str | None
) -> None:
    triage = Triage(Context(Runs(10), 1.0), Path())
    triage._proofs += [tried(code, code, verdict) for code, verdict in proofs.items()]
    unseen = tuple(merge([finding("M09", Severity.ERROR)]))
    final = triage._final(Verdict(unconfirmed=unseen, outcomes=(achieved(word),)))
    assert (final.principal.lead.code if final.principal else None) == principal
    assert final.principal is None or final.principal.severity is Severity.WARNING


def test_two_diagnoses_of_one_rule_are_two_matters() -> None:
    first, second = (
        msgspec.structs.replace(
            finding("O02", Severity.WARNING), subject=Subject("loop", name), place=Place("a.py", line)
        )
        for name, line in (("head", 3), ("body", 9))
    )
    triage = Triage(Context(Runs(10), 1.0), Path())
    places = {"head": first.place, "body": second.place}
    triage._proofs += [
        tried("O02", name, word, places[name]) for name, word in (("head", "no effect"), ("body", "confirmed"))
    ]
    verdict = triage._final(Verdict(diagnoses=tuple(merge([first, second]))))
    done = Investigation(result=Result(command="diagnose", verdict=verdict), proofs=tuple(triage._proofs))
    told = [(d.lead.subject.name, d.severity, done.proof_of(d)) for d in verdict.diagnoses]
    assert told == [
        ("body", Severity.ERROR, triage._proofs[1]),
        ("head", Severity.WARNING, triage._proofs[0]),
    ]
    assert list(triage._ruled_out(verdict)) == [
        "O02 at a.py:3: its remedy (a change) was tried and does not help: nothing."
    ]


def test_a_proof_is_about_what_text_and_run_have_seen_of_one_thing() -> None:
    """The diagnosis leads with the subject that the run names and the place that the text knows."""
    run = finding("O12", Severity.WARNING)
    run = msgspec.structs.replace(run, subject=Subject("call", "cross_entropy"), place=Place("train.py", 9))
    text = msgspec.structs.replace(
        run, subject=Subject("module", "head"), place=Place("train.py", 5), related=(run.place,), witness=Witness.SOURCE
    )
    (diagnosis,) = merge([run, text])
    proof = Proof(code="O12", about=matters(diagnosis), verdict=ProofVerdict.CONFIRMED, sentence="", remedy="", steps=1)
    triage = Triage(Context(Runs(10), 1.0), Path())
    triage._proofs.append(proof)
    verdict = triage._final(Verdict(diagnoses=(diagnosis,)))
    done = Investigation(result=Result(command="diagnose", verdict=verdict), proofs=(proof,))
    assert done.principal is not None
    assert done.proof_of(done.principal) is proof
    assert done.principal.severity is Severity.ERROR


LOOP = """
import time
import torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{before}
for _ in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    {inside}
"""


def runner_of(folder: Path, monkeypatch: pytest.MonkeyPatch, before: str = "", inside: str = "pass") -> Runner:
    (folder / "train.py").write_text(LOOP.format(before=before, inside=inside))
    monkeypatch.chdir(folder)
    return Runner(Program("train.py"), folder / "trials", jobs=1)


def trials_in(folder: Path, forking: int) -> list[int]:
    """The processes that were forked for trials of a script in this folder, which all have the same command line."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and pid not in (forking, os.getpid()):
                found.append(pid)
    return found


def has_ended(pid: int) -> bool:
    """Zombies have: nobody is left to wait for a process whose parent was killed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
def test_a_run_may_end_without_a_word_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = "import os, sys; time.sleep(60 if sys.argv[1] == 'wait' else 0)"
    with runner_of(tmp_path, monkeypatch, waits, "(os._exit(int(sys.argv[1])) if _ == 9 else None)") as runner:
        ended = []
        for word, seconds in (("0", 30.0), ("3", 30.0), ("wait", 1.0)):
            runner.program = Program("train.py", (word,))
            ended += runner.run([Variant(word, (StopAfter(50),))], seconds)
    assert [outcome.status for outcome in ended[:2]] == ["exited", "crashed"]
    assert all(len(outcome.curve.losses) >= 9 for outcome in ended[:2])
    assert ended[2].status == "killed" or ended[2].reason == StopReason.TIME_OVER
    assert ended[2].curve.losses == ()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_no_trial_outlives_the_process_that_forks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    def end_it(variant: Variant, folder: Path) -> None:
        if not pids and (folder / "events.jsonl").exists():
            pids.extend(trials_in(tmp_path, process.pid))
            os.kill(process.pid, signal.SIGKILL)

    with runner_of(tmp_path, monkeypatch, inside="time.sleep(0.01)") as runner:
        process = runner._process
        assert process is not None
        outcomes = runner.run([Variant("one", (StopAfter(90_000),)), Variant("two", (StopAfter(90_000),))], 60, end_it)
    assert [outcome.status for outcome in outcomes] == ["failed", "failed"]
    deadline = time.monotonic() + 5
    while not all(map(has_ended, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pids
    assert all(map(has_ended, pids))


def test_a_loss_that_falls_as_far_without_its_inputs_does_not_beat_a_guess() -> None:
    triage = Triage(Context(Runs(10), 1.0), Path())
    triage._experiments.append(
        Experiment(
            name="baseline", verdict=ExperimentVerdict.IGNORES, sentence="", method="", measures={"shuffled": 2.46}
        )
    )
    (outcome,) = triage._final(Verdict(outcomes=(achieved(Achieved.LEARNS),))).outcomes
    assert outcome.word is Achieved.GUESSES


def test_a_training_that_answers_new_examples_as_well_does_not_memorize() -> None:
    triage = Triage(Context(Runs(10), 1.0), Path())
    triage._experiments.append(Experiment(name="gap", verdict=ExperimentVerdict.APART, sentence="", method=""))
    (outcome,) = triage._final(Verdict(outcomes=(achieved(Achieved.MEMORIZES),))).outcomes
    assert outcome.word is Achieved.LEARNS
