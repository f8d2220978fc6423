"""What losses are given: what only looks guilty stays silent, variants are found."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import make_record
from torch import Tensor, nn
from torch.nn import functional as F

from unstuck.capture import watching
from unstuck.events import AxisGuessed, Backward, GraphFact, LossCall, NonFinite, OperationFact
from unstuck.findings import Severity, Witness
from unstuck.judge import judge
from unstuck.record import Record, read
from unstuck.rule import find_rule

CODES = "O12 O13 O14 O15 O16 M01 M02 M07 M08 M11 G15 G19 R01 R02 R08".split()
Loss = Callable[[nn.Module, Tensor], Tensor]


@pytest.fixture(autouse=True)
def seeded():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def recorded(tmp_path: Path):
    folders = (tmp_path / f"run{number}" for number in itertools.count())

    def run(loss_of: Loss, model: nn.Module, steps: int = 12, rate: float = 0.05, x: Tensor | None = None) -> Record:
        x = torch.randn(64, 8) if x is None else x
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with watching(folder := next(folders)):
            for _ in range(steps):
                loss = loss_of(model, x)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return read(folder)

    return run


@pytest.fixture
def found(recorded):
    def run(*args, **options) -> dict[str, Severity]:
        verdict = judge(record=recorded(*args, **options), rules=[r for code in CODES if (r := find_rule(code))])
        assert not verdict.failures
        return {diagnosis.lead.code: diagnosis.severity for diagnosis in verdict.diagnoses}

    return run


def labels(x: Tensor, classes: int = 5) -> Tensor:
    return x[:, :classes].argmax(1)


def positive(x: Tensor) -> Tensor:
    return (x[:, :1] > 0).float()


MASK = (torch.arange(6)[None] < torch.tensor([[2], [4], [6], [3]] * 16)).float()
TIMES = torch.randint(0, 5, (64, 6), generator=torch.Generator().manual_seed(3))


def by_time(model: nn.Module, x: Tensor) -> Tensor:
    """A loss for each of six positions."""
    scores = model(x)[:, :, None].expand(-1, -1, 6)
    return F.cross_entropy(scores, TIMES, reduction="none")


def divergence(code: Tensor) -> Tensor:
    """Of two numbers for each example, from the standard normal; next to nothing."""
    mu, logvar = 0.01 * code[:, :2], 0.01 * code[:, 2:4]
    return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


GUILTY = {
    "softmax before cross_entropy, behind a squeeze": (
        "O12",
        lambda m, x: F.cross_entropy(m(x).softmax(-1)[:, None].squeeze(1), labels(x)),
    ),
    "softmax as independent probabilities": (
        "O13",
        lambda m, x: F.binary_cross_entropy_with_logits(m(x).softmax(1), (x[:, :5] > 0).float()),
    ),
    "options by position": (
        "O13",
        lambda m, x: F.binary_cross_entropy_with_logits(torch.sigmoid(m(x)), (x[:, :5] > 0).float(), None),
    ),
    "two classes per example": ("O14", lambda m, x: F.cross_entropy(m(x), (x[:, :5] > 0).float())),
    "a masked mean, left-padded": ("O15", lambda m, x: (by_time(m, x) * MASK.flip(1)).mean()),
    "probabilities in nll_loss": ("O16", lambda m, x: F.nll_loss(m(x).softmax(1), labels(x))),
    "raw scores in nll_loss": ("O16", lambda m, x: F.nll_loss(m(x), labels(x))),
    "a column against a row in l1_loss": ("M01", lambda m, x: F.l1_loss(m(x)[:, :1], x.sum(1))),
    "softmax over the batch": ("M02", lambda m, x: F.nll_loss(torch.log_softmax(m(x), 0), labels(x))),
    "tanh scores": ("M07", lambda m, x: F.cross_entropy(torch.tanh(m(x)), labels(x))),
    "relu for targets below 0": ("M07", lambda m, x: F.mse_loss(torch.relu(m(x)), x[:, :5])),
    "labels first": ("M08", lambda m, x: F.binary_cross_entropy_with_logits((x[:, :5] > 0).float(), m(x))),
    "kl_div of probabilities": (
        "M08",
        lambda m, x: F.kl_div(m(x).softmax(1), x[:, :5].softmax(1), reduction="batchmean"),
    ),
    "the variance as the target": (
        "M08",
        lambda m, x: nn.GaussianNLLLoss()(m(x)[:, :2], F.softplus(m(x)[:, 2:4]), x[:, :2].abs()),
    ),
    "the target named as the variance": (
        "M08",
        lambda m, x: F.gaussian_nll_loss(m(x)[:, :2], var=x[:, :2].exp(), target=m(x)[:, 2:4].exp()),
    ),
    "a mean and a sum": ("M11", lambda m, x: F.cross_entropy(m(x), labels(x)) + (m(x) - x[:, :5]).pow(2).sum()),
    "a mean and a summed divergence that is small": ("M11", lambda m, x: F.mse_loss(m(x), x[:, :5]) + divergence(m(x))),
    "the root of 0": ("G15", lambda m, x: (m(x) - m(x)).pow(2).sum(1).sqrt().mean() + m(x).pow(2).mean()),
    "a clipped loss": ("G19", lambda m, x: F.mse_loss(m(x), 9 * x[:, :5], reduction="none").clamp(max=1.0).mean()),
}


@pytest.mark.parametrize("case", GUILTY)
def test_found(found, case):
    code, loss_of = GUILTY[case]
    assert code in found(loss_of, nn.Linear(8, 5)), case


INNOCENT = {
    "plain classification": lambda m, x: F.cross_entropy(m(x), labels(x)),
    "smoothed labels as rows": lambda m, x: F.cross_entropy(m(x), 0.9 * F.one_hot(labels(x), 5) + 0.02),
    "the first two labels are ignored": lambda m, x: F.cross_entropy(m(x), labels(x) - 1, ignore_index=-1),
    "a soft mask": lambda m, x: (by_time(m, x) * (0.5 + 0.5 * MASK)).mean(),
    "a masked mean, divided": lambda m, x: (by_time(m, x) * MASK).sum() / MASK.sum(),
    "a masked mean, divided by the mean": lambda m, x: (by_time(m, x) * MASK).mean() / MASK.mean(),
    "log-probabilities of a mixture": lambda m, x: F.nll_loss(torch.log(0.5 * m(x).softmax(1) + 0.1), labels(x)),
    "pairwise differences on purpose": lambda m, x: (m(x)[:, :1].unsqueeze(1) - x[:, :1]).pow(2).mean(),
    "nll_loss completed by hand": lambda m, x: F.nll_loss(s := m(x), labels(x)) + s.logsumexp(1).mean(),
    "a frozen input, mean squared error": lambda m, x: F.mse_loss(x[:, :5], m(x)),
    "a sum per example": lambda m, x: F.cross_entropy(m(x), labels(x)) + m(x).pow(2).sum(1).mean(),
    "a divergence divided by the batch": lambda m, x: F.mse_loss(m(x), x[:, :5]) + divergence(m(x)) / 64,
    "a divergence divided by all": lambda m, x: F.mse_loss(m(x), x[:, :5]) + 4 * divergence(m(x)) / 320,
    "two sums": lambda m, x: F.mse_loss(m(x), x[:, :5], reduction="sum") / 64 + divergence(m(x)) / 64,
    "a light sum": lambda m, x: F.cross_entropy(m(x), labels(x)) + 1e-3 * m(x).pow(2).sum(),
    "a guarded root": lambda m, x: (m(x) - x[:, :5]).pow(2).sum(1).add(1e-8).sqrt().mean(),
    "a hinge": lambda m, x: (1 - m(x)[:, 0] * x[:, 0].sign()).clamp(min=0).mean(),
    "a limit that is never reached": lambda m, x: F.cross_entropy(m(x), labels(x)).clamp(max=1e4),
    "mean, target and variance": lambda m, x: F.gaussian_nll_loss(m(x)[:, :2], x[:, :2], m(x)[:, 2:4].exp()),
    "a variance that is known": lambda m, x: F.gaussian_nll_loss(m(x)[:, :2], x[:, :2], x[:, 2:4].exp()),
    "the mean as the target": lambda m, x: F.gaussian_nll_loss(x[:, :2], m(x)[:, :2], x[:, 2:4].exp()),
    "two outputs and a fixed variance": lambda m, x: F.gaussian_nll_loss(
        m(x)[:, :2], m(x)[:, 2:4].exp(), torch.ones(64, 2)
    ),
    "two outputs on one scale": lambda m, x: F.gaussian_nll_loss(m(x)[:, :2], m(x)[:, 2:4], x[:, :2].exp()),
    "a rank over the batch": lambda m, x: F.kl_div(
        torch.log_softmax(m(x), 0), torch.softmax(x[:, :5], 0), reduction="batchmean"
    ),
    "relu for targets above 0": lambda m, x: F.mse_loss(torch.nn.functional.softplus(m(x)), x[:, :5].abs()),
}


@pytest.mark.parametrize("case", INNOCENT)
def test_silent(found, case):
    assert found(INNOCENT[case], nn.Linear(8, 5)) == {}, case


def test_a_pad_id_among_the_targets_of_a_vocabulary(found):
    tokens = torch.randint(1, 20, (16, 12))
    tokens[:, 8:] = 0
    model = nn.Sequential(nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 20))

    def loss_of(ignored: int) -> Loss:
        return lambda m, x: F.cross_entropy(m(x).view(-1, 20), x.view(-1), ignore_index=ignored)

    assert set(found(loss_of(-100), model, x=tokens)) == {"O15"}
    assert found(loss_of(0), model, x=tokens) == {}


def tagging(ignored: int = -100, length: int | None = None) -> Loss:
    """Words that are tagged 1 or 2, padded to a fixed length with word 0 and tag 0."""

    def loss_of(m: nn.Module, _: Tensor) -> Tensor:
        lengths = torch.full((16, 1), length) if length else torch.randint(2, 8, (16, 1))
        real = torch.arange(20) < lengths
        words = torch.randint(1, 30, (16, 20)) * real
        tags = (1 + words % 2) * real
        return F.cross_entropy(m(words).view(-1, 3), tags.view(-1), ignore_index=ignored)

    return loss_of


def test_tags_of_pads_are_as_many_as_the_pads(found):
    model = nn.Sequential(nn.Embedding(30, 16, padding_idx=0), nn.Linear(16, 3))
    assert "O15" in found(tagging(), model)
    assert "O15" not in found(tagging(ignored=0), model)
    assert "O15" not in found(tagging(length=7), model), "the same number every time may be one of something else"
    unpadded = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 3))
    assert "O15" not in found(tagging(), unpadded), "word 0 may be a word"


def test_labels_of_a_classifier_on_text_are_no_pads(found):
    tokens = torch.randint(0, 20, (64, 12))
    model = nn.Sequential(nn.Embedding(20, 16, padding_idx=0), nn.Flatten(), nn.Linear(192, 2))
    assert found(lambda m, x: F.cross_entropy(m(x), x[:, 0] % 2), model, x=tokens) == {}


def test_an_unused_first_class_is_advice_but_not_in_a_vocabulary(found):
    x = torch.randn(256, 8)
    assert found(lambda m, x: F.cross_entropy(m(x), labels(x, 4) + 1), nn.Linear(8, 5), x=x) == {"O14": Severity.ADVICE}
    tokens = torch.randint(1, 5, (64, 12))
    model = nn.Sequential(nn.Embedding(5, 16), nn.Linear(16, 5))
    assert found(lambda m, x: F.cross_entropy(m(x).view(-1, 5), x.view(-1)), model, x=tokens) == {}


def test_q_values_are_seen_through_the_choice_of_an_action(found):
    model = nn.Sequential(nn.Linear(8, 2), nn.Sigmoid())
    actions = torch.zeros(64, 1, dtype=torch.long)
    codes = found(lambda m, x: F.smooth_l1_loss(m(x).gather(1, actions), 5 + x[:, :1]), model)
    assert codes["M07"] is Severity.ERROR


def test_a_difference_by_hand_that_grew(found):
    assert "M01" in found(lambda m, x: (m(x) - x[:, 0]).pow(2).mean(), nn.Linear(8, 1))
    assert "M01" in found(lambda m, x: (x[:, :1] - m(x).squeeze(-1)).abs().mean(), nn.Linear(8, 1))


def test_an_axis_that_torch_had_to_choose_is_told_once_per_line(recorded):
    with pytest.warns(UserWarning, match="Implicit dimension"):
        record = recorded(lambda m, x: F.cross_entropy(m(F.softmax(x)), labels(x)), nn.Linear(8, 5))
    (guessed,) = record.of(AxisGuessed)
    assert (guessed.function, guessed.shape, guessed.axis) == ("softmax", (64, 8), 1)


def test_a_saturated_sigmoid_before_plain_cross_entropy_is_a_warning(found):
    def wrong(m: nn.Module, x: Tensor) -> Tensor:
        return F.binary_cross_entropy(torch.sigmoid(1000 * m(x)), 1 - positive(x))

    model = nn.Linear(8, 1, bias=False)
    model.weight.data.copy_(torch.eye(8)[:1])
    assert found(wrong, model)["O13"] is Severity.WARNING
    assert found(lambda m, x: F.binary_cross_entropy(torch.sigmoid(m(x)), positive(x)), nn.Linear(8, 1)) == {
        "O13": Severity.ADVICE
    }


class TestTheStart:
    def test_scores_too_large(self, found):
        model = nn.Linear(8, 5)
        nn.init.normal_(model.weight, std=4)
        assert "R01" in found(lambda m, x: F.cross_entropy(m(x), labels(-x)), model)

    def test_a_loaded_model_may_begin_anywhere(self, tmp_path):
        model = nn.Linear(8, 5)
        wide = {name: 9 * torch.randn_like(value) for name, value in model.state_dict().items()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(64, 8)
        with watching(tmp_path / "run"):
            model.load_state_dict(wide)
            for _ in range(12):
                optimizer.zero_grad()
                F.cross_entropy(model(x), labels(x)).backward()
                optimizer.step()
        rule = find_rule("R01")
        assert rule
        assert not judge(record=read(tmp_path / "run"), rules=[rule]).diagnoses

    def test_time_steps_with_targets_of_their_own(self, found):
        growing = [0.01, 0.1, 1.0, 10.0]

        def over_time(m: nn.Module, x: Tensor) -> Tensor:
            return sum(F.mse_loss(m(x), size * x[:, :1]) for size in growing)

        assert found(over_time, nn.Linear(8, 1), rate=0.001) == {}

    def test_a_mean_that_takes_the_run_to_learn(self, found):
        def far(m: nn.Module, x: Tensor) -> Tensor:
            return F.mse_loss(m(x), 50 + x[:, :1])

        assert found(far, nn.Linear(8, 1), steps=40, rate=0.002)["R02"] is Severity.WARNING
        assert "R02" not in found(far, nn.Linear(8, 1), steps=40, rate=0.3)


class TestConstantOutput:
    def test_dead_units(self, found):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
        nn.init.constant_(model[0].bias, -50.0)
        assert "R08" in found(lambda m, x: F.cross_entropy(m(x), labels(x)), model, steps=60)

    def test_one_class_that_is_right_for_most(self, found):
        def rare(m: nn.Module, x: Tensor) -> Tensor:
            return F.cross_entropy(m(x), (x[:, 0] > 2).long())

        assert "R08" not in found(rare, nn.Linear(8, 2), steps=60)

    def test_a_short_or_learning_run(self, found):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))
        assert found(lambda m, x: F.cross_entropy(m(x), labels(x)), model, steps=60) == {}


def test_the_targets_of_one_batch_are_not_those_of_all(found):
    """Batches of one place each, whose targets are alike and far from those of other places."""

    def by_place(m: nn.Module, x: Tensor) -> Tensor:
        return F.mse_loss(m(torch.randn(64, 8)), torch.randn(()) + 0.02 * torch.randn(64, 1))

    def far_away(m: nn.Module, x: Tensor) -> Tensor:
        return F.mse_loss(m(torch.randn(64, 8)), 30 + torch.randn(()) + 0.02 * torch.randn(64, 1))

    assert "R02" not in found(by_place, nn.Linear(8, 1), steps=40, rate=1e-3)
    assert "R02" in found(far_away, nn.Linear(8, 1), steps=40, rate=1e-3)


def test_the_operation_at_its_edge_is_read_in_the_step_that_breaks(recorded):
    """Step 6 is not one in which graphs are read anyway."""
    steps = itertools.count()

    def averaged(m: nn.Module, x: Tensor) -> Tensor:
        kept = (torch.rand(64) < 0.5).float()
        kept = kept * 0 if next(steps) == 5 else kept
        return (m(x).pow(2).mean(1) * kept).sum() / kept.sum()

    verdict = judge(record=recorded(averaged, nn.Linear(8, 1), steps=14))
    (numerics,) = [d.lead for d in verdict.diagnoses if d.lead.code == "G15"]
    (broken,) = [d.lead for d in verdict.diagnoses if d.lead.code == "G10"]
    assert "at step 6" in broken.message
    assert "NaN or infinity at step 6" in numerics.message
    assert verdict.diagnoses[0].lead.code == "G15"


def test_what_a_loss_call_tells(recorded):
    ids = torch.tensor([0, 0, 1, 2, -1, 1, 1, 0])
    x = torch.randn(8, 8)
    call = next(
        recorded(lambda m, x: nn.NLLLoss(ignore_index=-1)(m(x).log_softmax(1), ids), nn.Linear(8, 3), x=x).of(LossCall)
    )
    assert call.target
    assert call.target.classes
    assert call.target.classes.counts == {0: 3, 1: 3, 2: 1}
    assert (call.target.low, call.target.high, call.ignored, call.reduction) == (0, 2, 0.125, "mean")
    assert call.target.classes.changes == pytest.approx(5 / 7)
    assert call.input
    assert call.input.axis == 1
    assert call.grad_enabled is True


def test_numbers_about_values_agree_with_torch(recorded):
    x = torch.randn(64, 8)
    first = next(recorded(lambda m, x: F.mse_loss(m(x), x[:, :5] ** 3), nn.Linear(8, 5), x=x).of(LossCall))
    target = x[:, :5] ** 3
    assert first.target
    assert first.target.mean == pytest.approx(target.mean().item(), rel=1e-4, abs=1e-5)
    assert first.target.spread == pytest.approx(target.std(correction=0).item(), rel=1e-4)
    assert first.target.between == pytest.approx(target.std(0, correction=0).mean().item(), rel=1e-4)


def test_graphs_are_read_a_few_times_only(recorded):
    record = recorded(INNOCENT["plain classification"], nn.Linear(8, 5), steps=120)
    read_at = [backward.step for backward in record.of(Backward) if backward.graph is not None]
    assert read_at[:4] == [0, 1, 2, 10]
    assert len(read_at) <= 7


def test_an_edge_seen_after_the_first_nan_names_both_steps():
    """On a device the graph of the step that breaks is not read."""
    graph = GraphFact(operations=(OperationFact("div", low=0.0, high=3.0),))
    events = (NonFinite(step=5, suspects=("DivBackward0",)), Backward(step=10, graph=graph))
    (found,) = find_rule("G15").findings(Witness.RUN, make_record(*events))
    assert "at step 11" in found.message
    assert "at step 6" in found.message
