"""The learning rate range test: verdicts, suggestions, and programs that are odd."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from unstuck.capture.detect.divergence import Divergence
from unstuck.experiments.lr import best_rate, grid, lr, remedy, sweep_of
from unstuck.findings import Severity, Witness
from unstuck.findings.curve import Curve
from unstuck.findings.results import Experiment, Status
from unstuck.interventions import NoSchedule, SetRate, SweepRate, intervene
from unstuck.rules.convergence import lr_too_low
from unstuck.rules.wiring import lr_too_high
from unstuck.trials.context import Context
from unstuck.trials.objects import ObjectContext
from unstuck.trials.runner import Outcome, Program, Runner, Variant

pytestmark = pytest.mark.usefixtures("one_thread")


HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
labels = torch.randint(0, 5, (500,))
inputs = torch.randn(5, 10)[labels] + 0.3 * torch.randn(500, 10)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))
def loss_of_a_batch():
    chosen = torch.randint(0, 500, (32,))
    return nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
"""
LOOP = """
for step in range(STEPS):
    BEFORE
    optimizer.zero_grad()
    loss_of_a_batch().backward()
    optimizer.step()
    AFTER
"""


def script_with(optimizer: str, steps: int = 10_000, before: str = "pass", after: str = "pass") -> str:
    return HEAD + optimizer + LOOP.replace("STEPS", str(steps)).replace("BEFORE", before).replace("AFTER", after)


def ranged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, seconds: float = 240.0) -> Experiment:
    home = tmp_path / "home"
    home.mkdir()
    (home / "train.py").write_text(text)
    monkeypatch.chdir(home)
    with Runner(Program("train.py"), tmp_path / "runs") as runner:
        return lr(Context(runner, seconds))


@functools.cache
def live(rate: float, kind: str = "Adam", seconds: float = 600.0) -> Experiment:
    torch.manual_seed(0)
    labels = torch.randint(0, 10, (1000,))
    inputs = torch.randn(10, 20)[labels] + torch.randn(1000, 20)
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=rate)
    batches = [(inputs[i : i + 32], labels[i : i + 32]) for i in range(0, 960, 32)]
    return lr(ObjectContext(model, nn.CrossEntropyLoss(), optimizer, batches, seconds=seconds))


@pytest.mark.parametrize(
    ("rate", "verdict"),
    [
        (1e-6, "too low"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((3e-3, "inside"), (30.0, "too high"))),
    ],
)
def test_verdict_on_objects(rate: float, verdict: str) -> None:
    found = live(rate)
    assert (found.name, found.verdict) == ("lr", verdict), found.sentence
    suggested = found.measures["suggested"]
    assert isinstance(suggested, float)
    assert 1e-3 < suggested < 0.1
    assert found.measures["own"] == rate
    assert len(found.xs) == len(found.curves[0].curve.losses) > 20
    assert list(found.xs) == sorted(found.xs)
    better = remedy(found)
    assert better is None if verdict == "inside" else better == SetRate(suggested / rate)


def test_findings_of_both_rules() -> None:
    low, high = live(1e-6), live(30.0)
    [finding] = lr_too_low.rule.findings(Witness.EXPERIMENT, low)
    assert (finding.code, finding.witness) == ("O07", Witness.EXPERIMENT)
    assert finding.number("learning rate") == 1e-6
    assert f"{low.measures['highest']:.2g}" in finding.message
    [changes, *_] = lr_too_low.remedied(finding)
    assert changes == (SetRate(low.measures["suggested"] / 1e-6),)  # type: ignore[operator]
    [finding] = lr_too_high.in_experiment(high)
    assert (finding.code, finding.severity) == ("M14", Severity.ERROR)
    assert not list(lr_too_low.in_experiment(high))
    assert not list(lr_too_high.in_experiment(low))


@pytest.mark.slow
def test_a_loss_that_no_rate_moves_is_not_blamed_on_the_rate() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches = [(torch.randn(64, 4), torch.randn(64, 1))]

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (target**2).mean() + 0.0 * output.sum()

    found = lr(ObjectContext(model, loss, optimizer, batches, seconds=60))
    assert found.verdict == "undecided"
    assert "no learning rate" in found.sentence
    assert remedy(found) is None


def test_several_optimizers_lbfgs_and_zero_are_undecided() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    batches = [(torch.randn(8, 4), torch.randn(8, 1))]
    pair = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    odd = {
        "optimizers step": pair,
        "LBFGS": torch.optim.LBFGS(model.parameters()),
        "is 0": torch.optim.SGD(model.parameters(), lr=0.0),
    }
    for words, optimizer in odd.items():
        found = lr(ObjectContext(model, nn.MSELoss(), optimizer, batches, seconds=60))
        assert found.verdict == "undecided"
        assert words in found.sentence


def test_no_time_is_said() -> None:
    found = live(1e-3, seconds=1e-6)
    assert found.verdict == "undecided"
    assert found.sentence


@pytest.mark.slow
def test_a_rate_set_by_hand_in_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = "for group in optimizer.param_groups: group['lr'] = 1e-6 * min(1, (step + 1) / 10)"
    text = script_with("optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)", before=by_hand)
    found = ranged(tmp_path, monkeypatch, text)
    assert found.verdict == "too low", found.sentence
    assert found.measures["own"] == pytest.approx(1e-6)
    assert 1e-3 < float(found.measures["suggested"] or 0) < 0.1


@pytest.mark.slow
def test_a_schedule_from_another_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the Transformer's: built with lr 1, and a factor that is a rate."""
    text = script_with(
        "optimizer = torch.optim.Adam(model.parameters(), lr=1.0)\n"
        "plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 3e-3)",
        after="plan.step()",
    )
    found = ranged(tmp_path, monkeypatch, text)
    assert found.verdict == "inside", found.sentence
    assert found.measures["own"] == pytest.approx(3e-3)
    assert "overridden" in found.method


@pytest.mark.slow
def test_a_script_that_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = script_with("optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)", steps=60)
    found = ranged(tmp_path, monkeypatch, text)
    assert found.verdict == "too low", found.sentence
    assert int(found.measures["steps"] or 0) <= 60


@pytest.mark.slow
def test_scripts_that_do_not_train_or_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ranged(tmp_path, monkeypatch, "import torch\nraise RuntimeError('no data')")
    assert found.verdict == "undecided"
    assert "crashed" in found.sentence


def outcome(rates: list[float], losses: list[float | None], reason: str = "") -> Outcome:
    curve = Curve(tuple(range(len(losses))), tuple(losses))
    return Outcome(
        variant=Variant("sweep"), folder=Path(), status=Status.STOPPED, curve=curve, seconds=1.0, reason=reason,
        notes={"rates": rates},
    )  # fmt: skip


@pytest.mark.parametrize("shift", [0.0, -50.0])
def test_a_sweep_names_where_it_falls_and_where_it_breaks(shift: float) -> None:
    rates = [10 ** (-6 + 7 * i / 150) for i in range(150)]
    losses = [shift + 2 / (1 + (rate / 1e-3) ** 2) + (rate / 0.1) ** 2 for rate in rates]
    sweep = sweep_of(outcome(rates, [*losses[:130]], "the loss diverged"))
    assert sweep is not None
    assert 3e-4 < (sweep.steepest or 0) < 3e-3
    assert 0.03 < (sweep.diverged_at or 0) < 0.3


def test_a_flat_sweep_has_neither() -> None:
    torch.manual_seed(0)
    rates = [10 ** (-6 + 7 * i / 150) for i in range(150)]
    sweep = sweep_of(outcome(rates, [2.3 + 0.1 * float(torch.randn(())) for _ in rates]))
    assert sweep is not None
    assert (sweep.steepest, sweep.diverged_at) == (None, None)


def test_nothing_is_made_of_too_little() -> None:
    assert sweep_of(outcome([1e-3] * 3, [1.0, 2.0, None])) is None
    assert sweep_of(outcome([], [])) is None
    assert sweep_of(outcome([0.0] * 50, [1.0] * 50)) is None


def test_the_best_rate_lies_amid_the_good_ones() -> None:
    results = {1e-4: 2.0, 1e-3: 0.5, 10**-2.5: 0.5, 1e-2: 0.5, 0.1: 2.3}
    assert best_rate(results, 2.3) == pytest.approx(10**-2.5, rel=0.05)
    assert best_rate({1e-3: 1.0, 1e-2: math.inf}, 2.3) == pytest.approx(1e-3)
    assert grid(2e-4, 0.05) == pytest.approx([10**-3.5, 1e-3, 10**-2.5, 1e-2, 10**-1.5])


def test_a_loss_near_zero_may_swing() -> None:
    divergence = Divergence()
    for loss in [2.3] * 5 + [0.001] * 10 + [0.02] * 10:
        divergence.follow(loss)
    assert not divergence.seen
    for loss in [2.0] * 5:
        divergence.follow(loss)
    assert divergence.seen


class Rates:
    """Steps an optimizer under interventions and keeps the rates it used and had afterwards."""

    def __init__(self, *changes: SweepRate | SetRate | NoSchedule) -> None:
        self.lab = intervene(changes)
        self.used: list[float] = []

    def step(self, optimizer: torch.optim.Optimizer) -> float:
        handle = optimizers.register_optimizer_step_pre_hook(
            lambda one, args, kwargs: self.used.append(float(one.param_groups[0]["lr"]))
        )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        handle.remove()
        return float(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("tensor", [False, True])
def test_the_own_rate_is_put_back(tensor: bool) -> None:
    rate = torch.tensor(0.5) if tensor else 0.5
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=rate, foreach=False, capturable=False)
    rates = Rates(SweepRate(0.1, 10.0, 3))
    try:
        assert [rates.step(optimizer) for _ in range(3)] == pytest.approx([0.5] * 3)
    finally:
        rates.lab.undo()
    assert rates.used == pytest.approx([0.05, 0.5, 5.0])
    assert rates.lab.notes["rates"] == pytest.approx(rates.used)
    assert type(optimizer.param_groups[0]["lr"]) is type(rate)


def test_changes_of_the_rate_add_up_and_are_undone_together() -> None:
    rates = Rates(NoSchedule(), SetRate(10.0))
    try:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5)
        optimizer.param_groups[0]["lr"] = 0.001  # by the schedule of the script
        assert rates.step(optimizer) == 0.001
        optimizer.param_groups[0]["lr"] = 0.002
        assert rates.step(optimizer) == 0.002
    finally:
        rates.lab.undo()
    assert rates.used == pytest.approx([5.0, 5.0])


def test_a_sweep_of_groups_keeps_their_proportions_and_takes_new_ones() -> None:
    first, second, third = (nn.Parameter(torch.ones(2)) for _ in range(3))
    rates = Rates(SweepRate(1.0, 1.0, 5))
    try:
        optimizer = torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.0}], lr=0.5)
        rates.step(optimizer)
        optimizer.add_param_group({"params": [third], "lr": 0.3})
        rates.step(optimizer)
    finally:
        rates.lab.undo()
    assert [float(p.detach()[0]) for p in (first, second, third)] == pytest.approx([0.8, 1.0, 0.7])


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one, with whose groups it works."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.param_groups = inner.param_groups

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_optimizer_around_another_is_changed_once() -> None:
    weight = nn.Parameter(torch.ones(2))
    rates = Rates(SetRate(2.0))
    try:
        rates.step(Wrapper(torch.optim.SGD([weight], lr=0.1)))
    finally:
        rates.lab.undo()
    assert float(weight.detach()[0]) == pytest.approx(0.8)
