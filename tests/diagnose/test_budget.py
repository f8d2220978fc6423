"""Budgets are used, kept and reported truly: the plan with a clock of our own, and trials that do not want to end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

import unstuck
from tests.fakes import make_record
from unstuck.diagnose.script import NoRun
from unstuck.diagnose.triage import Task, Triage, experiments_in_order, longer_experiment, longer_proof, work
from unstuck.experiments.overfit import overfit
from unstuck.findings.curve import Curve
from unstuck.findings.investigation import Investigation, Reason, Skipped
from unstuck.findings.result import Result
from unstuck.findings.results import Experiment, ExperimentVerdict, Pair, Proof, ProofVerdict, Status
from unstuck.findings.verdict import Verdict
from unstuck.interventions import FreezeBatch, StopAfter
from unstuck.record import Record
from unstuck.report.investigation import because, render, skipped_sentences
from unstuck.report.terminal import plain
from unstuck.trials.context import Context, NoTime
from unstuck.trials.runner import Outcome, Program, Progress, Runner, Variant
from unstuck.trials.trial import StopReason


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeOutcome(Outcome, frozen=True, kw_only=True):
    def record(self) -> Record:
        return make_record(losses=tuple(loss or 0.0 for loss in self.curve.losses), script="nowhere.py")


class FakeRuns:
    """Trials that take time on a clock of their own: the first starts cold, each step takes its pace."""

    jobs = 2

    def __init__(self, clock: Clock, pace: float, cold: float, warm: float, losses: str = "flat") -> None:
        self.clock, self.pace, self.cold, self.warm, self.losses = clock, pace, cold, warm, losses
        self.made: list[Variant] = []

    def run(self, variants: Sequence[Variant], seconds: float, progress: Progress, until: float) -> list[Outcome]:
        done: list[Outcome] = []
        for index in range(0, len(variants), self.jobs):
            together = [self._outcome(variant, seconds, until) for variant in variants[index : index + self.jobs]]
            self.clock.now += max(outcome.seconds for outcome in together)
            done += together
        return done

    def _outcome(self, variant: Variant, seconds: float, until: float) -> Outcome:
        start = self.warm if self.made else self.cold
        self.made.append(variant)
        allowed = max(0.0, min(seconds, until - self.clock.now))
        limits = [change for change in variant.changes if isinstance(change, StopAfter)]
        taken = 0
        while not any(limit.is_reached(taken, start + taken * self.pace) for limit in limits):
            taken += 1
        possible = max(0, int((allowed - start) / self.pace)) if allowed >= start else 0
        cut = possible < taken
        taken = min(taken, possible)
        falls = self.losses == "falling" or any(isinstance(change, FreezeBatch) for change in variant.changes)
        losses = (3.0 / (1 + step) if falls else 1.0 for step in range(taken))
        return FakeOutcome(
            variant=variant,
            folder=Path(),
            status=Status.KILLED if cut else Status.STOPPED,
            reason=StopReason.TIME_OVER if cut else "",
            curve=Curve(tuple(range(taken)), tuple(losses)),
            seconds=allowed if cut else start + taken * self.pace,
            training_seconds=taken * self.pace if taken else None,
        )


class FakeTriage(Triage):
    """Of a script whose later trials find loaded what took long to import."""

    def prepare(self, outcome: Outcome) -> None:
        runs = self._context.runner
        assert isinstance(runs, FakeRuns)
        self._context.starts_sooner((runs.cold - runs.warm) / 2)  # imports are quicker the second time

    def protected(self, outcome: Outcome) -> str:
        return ""

    def next_command(self, verdict: Verdict) -> str:
        return ""


def investigated(
    budget: float, pace: float, cold: float = 1.0, warm: float = 1.0, losses: str = "flat"
) -> Investigation:
    clock = Clock()
    context = Context(FakeRuns(clock, pace, cold, warm, losses), budget, clock=clock)
    return FakeTriage(context, Path()).answer()


def text_of(done: Investigation) -> str:
    return " ".join(plain(render(done)).split())


def test_a_slow_start_of_the_first_run_is_not_charged_to_the_later_ones() -> None:
    """16 of 20 s of imports that later runs do not pay: all experiments fit."""
    done = investigated(150, pace=0.02, cold=20, warm=2)
    assert not [one for one in done.skipped if one.why is Reason.BUDGET]
    assert {one.name for one in done.experiments} >= {"overfit", "baseline"}
    assert "left" not in " ".join(skipped_sentences(done))


def test_a_quick_script_is_given_its_whole_budget() -> None:
    """Steps of 15 ms were once done with in 55 s, whatever the budget: the last experiments were not made."""
    done = investigated(300, pace=0.015, cold=15, warm=15)
    assert not [one for one in done.skipped if one.why is Reason.BUDGET]
    assert {one.name for one in done.experiments} >= {"overfit", "baseline", "lr"}
    assert done.seconds > 55


def test_what_does_not_fit_says_what_it_needs_and_what_was_left() -> None:
    done = investigated(60, pace=2.0)
    short = [one for one in done.skipped if one.why is Reason.BUDGET]
    assert short
    assert done.ended is Reason.BUDGET
    for one in short:
        assert one.needed is not None
        assert one.left is not None
        assert one.needed > one.left
        assert one.left == pytest.approx(60 - done.seconds, abs=1e-6)
    assert any("of 60 s were left" in sentence for sentence in skipped_sentences(done))


def test_a_run_that_goes_well_ends_early_and_says_why() -> None:
    done = investigated(600, pace=0.3, losses="falling")
    assert done.ended is Reason.GOING_WELL
    assert {one.what for one in done.skipped if one.why is Reason.GOING_WELL} >= {"lr"}
    assert not [one for one in done.skipped if one.why is Reason.BUDGET]
    assert "not needed, the run is going well" in text_of(done)
    assert f"of 600 s{because(done)}" in text_of(done)


@settings(deadline=None, max_examples=50)
@given(
    budget=st.floats(5, 1000),
    pace=st.floats(1e-5, 0.1),
    cold=st.floats(0, 0.4),
    warm=st.floats(0, 1),
    losses=st.sampled_from(["flat", "falling"]),
)
def test_whatever_the_pace_the_budget_is_kept_and_no_lack_of_time_is_claimed_that_is_none(
    budget: float, pace: float, cold: float, warm: float, losses: str
) -> None:
    """Steps and starts are given as shares of the budget, and starts of later runs as shares of the first."""
    done = investigated(budget, pace * budget, cold * budget, warm * cold * budget, losses)
    assert done.seconds <= budget * 1.1
    for one in done.skipped:
        assert (one.needed is None) == (one.why is not Reason.BUDGET)
        if one.needed is not None and one.left is not None:
            assert one.needed > one.left
            assert one.left == pytest.approx(max(0.0, budget - done.seconds), abs=1e-6)
    tried = {one.name for one in done.experiments} | {one.what for one in done.skipped}
    # Some do not apply to every run: parts to switch off, a future to see, another optimizer than the one to try.
    may_be_missing = {"ablate", "causality", "data", "gap", "isolate", "layers", "optimizer"}
    assert tried | may_be_missing >= {kind.name for kind in experiments_in_order()}


def test_what_did_not_fit_is_looked_at_again_once_the_others_were_quicker() -> None:
    performed: list[str] = []

    def slow() -> None:
        if "quick" not in performed:
            raise NoTime(10, 5)
        performed.append("slow")

    def never() -> None:
        raise NoTime(50, 5)

    tasks = [Task("slow", slow), Task("quick", lambda: performed.append("quick")), Task("never", never)]
    assert work(tasks) == [Skipped("never", Reason.BUDGET, 50, 5)]
    assert performed == ["quick", "slow"]


def test_an_experiment_that_does_not_fit_into_its_budget_says_so() -> None:
    clock = Clock()
    context = Context(FakeRuns(clock, pace=1.0, cold=2.0, warm=2.0), 30, clock=clock)
    context.learn_pace()
    done = overfit.answer(context)
    assert done.verdict == "undecided"
    assert done.sentence == "It was not tried: it needs about 52 s, and 23 of 30 s were left; give it more."


def test_a_step_is_planned_by_all_the_time_there_is_before_it_is_refused() -> None:
    """A share of 60 % of 40 s does not allow 50 steps of half a second, all of it does."""
    clock = Clock()
    context = Context(FakeRuns(clock, pace=0.5, cold=0.0, warm=0.0), 40 + 0.5 * 10, clock=clock)
    context.learn_pace()
    assert context.steps_for(1, 0.6, 250, least=50) == 50


def test_pace_and_start_are_those_of_the_latest_runs() -> None:
    clock = Clock()
    runs = FakeRuns(clock, pace=0.1, cold=20.0, warm=2.0)
    context = Context(runs, 1000, clock=clock)
    context.run([Variant("first")], 50)
    assert context.start_seconds == pytest.approx(20)
    runs.pace = 0.3  # two at once
    context.run([Variant("a", repeat=1), Variant("b", repeat=2)], 50)
    assert (context.step_seconds, context.start_seconds) == pytest.approx((0.3, 2.0))


@pytest.mark.parametrize("ended", Reason)
def test_every_end_has_a_reason(ended: Reason) -> None:
    done = Investigation(result=Result(command="diagnose", verdict=Verdict()), seconds=14.2, budget=300, ended=ended)
    assert f"Took 14 of 300 s{because(done)}." in text_of(done)
    assert len(because(done)) > 10


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


def test_trials_that_do_not_listen_end_with_the_budget_and_those_waiting_never_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(STUBBORN)
    monkeypatch.chdir(tmp_path)
    with Runner(Program("train.py"), tmp_path / "trials", jobs=1) as runner:
        runner.prepare([])  # torch is imported
        began = time.monotonic()
        outcomes = runner.run([Variant("one"), Variant("two")], math.inf, until=began + 1)
    assert [outcome.status for outcome in outcomes] == ["killed", "killed"]
    assert outcomes[1].reason == StopReason.TIME_OVER
    assert time.monotonic() - began < 10
    assert [folder.name for folder in (tmp_path / "trials").iterdir()] == ["01-one"]


def tried(verdict: str, steps: int, pairs: int = 3) -> Proof:
    pair = Pair(0, Curve(), Curve(), Status.STOPPED, Status.STOPPED)
    return Proof(code="O04", verdict=ProofVerdict(verdict), sentence="", remedy="", steps=steps, pairs=(pair,) * pairs)


@pytest.mark.parametrize(
    ("proof", "left", "available", "how"),
    [
        (tried("confirmed", 20), 1000, None, None),
        (tried("worse", 20), 1000, None, None),
        (tried("no effect", 300), 1000, None, None),
        (tried("undecided", 20), 1000, None, (200, 3)),  # too short for a remedy to show
        (tried("undecided", 300), 1000, None, (1200, 3)),
        (tried("undecided", 300), 20, None, None),
        (tried("undecided", 300), 1000, 300, (300, 5)),  # the script takes no more steps by itself
        (tried("undecided", 300, pairs=5), 1000, 300, None),
    ],
)
def test_what_is_undecided_is_tried_with_more_steps_or_more_seeds(
    proof: Proof, left: float, available: int | None, how: tuple[int, int] | None
) -> None:
    clock = Clock()
    context = Context(FakeRuns(clock, pace=0.1, cold=1.0, warm=1.0), left, clock=clock)
    context.step_seconds, context.start_seconds, context.available_steps = 0.1, 1.0, available
    assert longer_proof(context, proof) == how


@pytest.mark.parametrize(
    ("name", "verdict", "measures", "wanted"),
    [
        ("overfit", "undecided", {"slow": True, "steps": 250}, 1000),
        ("overfit", "undecided", {"slow": False, "steps": 250}, None),
        ("overfit", "failed", {"slow": False, "steps": 250}, None),
        ("baseline", "undecided", {"steps": 100}, 400),
        ("baseline", "undecided", {}, None),
        ("baseline", "undecided", {"steps": 10_000}, None),
        ("lr", "undecided", {"steps": 100}, None),
    ],
)
def test_an_experiment_that_lacks_only_steps_is_made_again(
    name: str, verdict: str, measures: dict[str, bool | int | float | str | None], wanted: int | None
) -> None:
    clock = Clock()
    context = Context(FakeRuns(clock, pace=0.1, cold=1.0, warm=1.0), 1000, clock=clock)
    context.step_seconds = 0.1
    done = Experiment(name=name, verdict=ExperimentVerdict(verdict), sentence="", method="", measures=measures)
    assert longer_experiment(context, done) == wanted


@pytest.mark.parametrize(("status", "reason"), [(Status.KILLED, ""), (Status.STOPPED, StopReason.TIME_OVER)])
def test_a_script_that_was_cut_off_before_its_first_step_did_not_end_by_itself(status: Status, reason: str) -> None:
    """Whether or not it could still write down that its time was over."""
    outcome = Outcome(variant=Variant("pace"), folder=Path(), status=status, curve=Curve(), seconds=9.0, reason=reason)
    said = str(NoRun(Program("train.py"), outcome))
    assert said == "train.py had not taken a training step when the budget was used up; give it more with --budget."


@pytest.mark.parametrize("seconds", [-1, 0, math.nan, math.inf, True, "60"])
@pytest.mark.parametrize("answer", [unstuck.overfit, unstuck.isolate, unstuck.diagnose, unstuck.assert_learns])
def test_a_budget_that_is_not_a_time_is_refused(answer: Callable[..., object], seconds: object) -> None:
    model = torch.nn.Linear(3, 1)
    batches = [(torch.ones(4, 3), torch.ones(4, 1))]
    with pytest.raises(ValueError, match="seconds must be a number above 0, not"):
        answer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1), batches, seconds=seconds)
