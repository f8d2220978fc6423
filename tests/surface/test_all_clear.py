"""Losses that are wrong in ways a smooth picture hides, and healthy ones next to them that must stay clean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unstuck
from unstuck.cli import main
from unstuck.findings import Confidence, Finding, Severity
from unstuck.findings.surface import Surface


def finding(surface: Surface, code: str) -> Finding:
    (found,) = [finding for finding in surface.findings if finding.code == code]
    return found


def codes(surface: Surface) -> set[str]:
    return {finding.code for finding in surface.findings}


# A focal weight the wrong way round: p ** gamma for (1 - p) ** gamma


def reversed_over_logits(logit: Tensor, gamma: float = 2.0) -> Tensor:
    return torch.sigmoid(logit) ** gamma * F.softplus(-logit)


def reversed_over_probabilities(p: Tensor, gamma: float = 2.0) -> Tensor:
    return -(p**gamma) * p.clamp_min(1e-6).log()


def reversed_with_targets(logits: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
    cost = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (torch.exp(-cost) ** gamma * cost).mean()


def reversed_over_classes(right: Tensor, wrong: Tensor) -> Tensor:
    logp = F.log_softmax(torch.stack([right, wrong], -1), -1)[..., 0]
    return -(logp.exp() ** 2) * logp


@pytest.mark.parametrize("reach", [3, 6, 10])
@pytest.mark.parametrize("gamma", [1.0, 2.0, 5.0])
def test_a_reversed_focal_weight_splits_descent(reach: float, gamma: float) -> None:
    surface = unstuck.surface(reversed_over_logits, ("logit", -reach, reach), fixed={"gamma": gamma})
    found = finding(surface, "S04")
    assert codes(surface) == {"S04"}
    assert found.severity is Severity.WARNING
    assert f"at logit = -{reach} " in found.message
    assert f"at logit = {reach} " in found.message


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (reversed_over_probabilities, {}),
        (reversed_with_targets, {"x": ("logits", -6, 6), "fixed": {"targets": torch.ones(1)}}),
        (reversed_with_targets, {"x": ("logits", -6, 6), "fixed": {"targets": torch.zeros(1)}}),
        (reversed_over_classes, {}),
    ],
)
def test_however_it_is_written(loss: Any, options: dict[str, Any]) -> None:
    assert codes(unstuck.surface(loss, **options)) - {"S01"} == {"S04"}


def test_the_right_end_makes_it_certain() -> None:
    surface = unstuck.surface(reversed_over_logits, ("logit", -6, 6), desired={"logit": (3, 6)})
    found = finding(surface, "S04")
    assert found.severity is Severity.ERROR
    assert {item.name for item in found.evidence} >= {"gradient farthest from the desired region", "largest gradient"}
    assert "the least gradient" in found.cause


@pytest.mark.parametrize(
    "loss",
    [
        lambda p: -(p * p.clamp_min(1e-6).log() + (1 - p) * (1 - p).clamp_min(1e-6).log()),
        lambda p: p**2 * (1 - p) ** 2,
    ],
)
def test_two_ends_that_mirror_each_other_are_not_called_wrong_but_are_counted(loss: Any) -> None:
    surface = unstuck.surface(loss, ("p", 0, 1))
    assert codes(surface) <= {"S06"}
    assert "one of 2 separate places" in finding(surface, "S06").message


# A contrastive loss that multiplies by its temperature


def multiplied(positive: Tensor, negative: Tensor, temperature: float = 0.1, count: int = 8) -> Tensor:
    scores = torch.stack([positive, *[negative] * count], dim=-1) * temperature
    return -F.log_softmax(scores, dim=-1)[..., 0]


def divided(positive: Tensor, negative: Tensor, temperature: float = 0.1) -> Tensor:
    scores = torch.stack([positive, *[negative] * 8], dim=-1) / temperature
    return -F.log_softmax(scores, dim=-1)[..., 0]


def over_embeddings(z1: Tensor, z2: Tensor, temperature: float = 0.1, divide: bool = True) -> Tensor:
    similarity = F.normalize(z1, dim=-1) @ F.normalize(z2, dim=-1).T
    scores = similarity / temperature if divide else similarity * temperature
    return F.cross_entropy(scores, torch.arange(len(z1)))


class NTXent(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        z = F.normalize(torch.cat([first, second]), dim=1)
        scores = (z @ z.T * self.scale).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
        count = len(first)
        return F.cross_entropy(scores, torch.arange(2 * count).roll(count))


@pytest.mark.parametrize("temperature", [0.05, 0.07, 0.1, 0.2])
@pytest.mark.parametrize("count", [1, 8, 255])
def test_a_multiplied_temperature_never_beats_a_guess(temperature: float, count: int) -> None:
    surface = unstuck.surface(
        lambda pos, neg: F.softplus((neg - pos) * temperature + math.log(count)), ("pos", -1, 1), ("neg", -1, 1)
    )
    found = finding(surface, "S09")
    assert codes(surface) == {"S09"}
    assert (found.severity, found.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert f"multiplies similarities by {temperature:g}" in found.message
    assert f"a guess among {count + 1} costs {math.log(count + 1):.3g}" in found.message
    assert "Divide" in found.fix.text


def test_as_a_softmax_over_candidates_too() -> None:
    assert codes(unstuck.surface(multiplied)) == {"S09"}
    assert codes(unstuck.surface(divided)) == {"S06"}


@pytest.mark.parametrize(
    ("loss", "options"),
    [(over_embeddings, {"fixed": {"divide": False}}), (NTXent(0.1), {}), (NTXent(0.5), {})],
)
def test_a_loss_of_embeddings_is_given_pairs_of_embeddings(loss: Any, options: dict[str, Any]) -> None:
    surface = unstuck.surface(loss, **options)
    found = finding(surface, "S09")
    assert codes(surface) == {"S09"}
    assert (found.severity, found.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert any("pairs of unit embeddings" in note for note in surface.notes)


@pytest.mark.parametrize("loss", [over_embeddings, NTXent(10.0), NTXent(2.0)])
def test_embeddings_whose_similarities_are_divided_are_clean(loss: Any) -> None:
    assert codes(unstuck.surface(loss)) == {"S06"}


def test_a_flipped_sign_pushes_pairs_apart() -> None:
    assert finding(unstuck.surface(NTXent(-10.0)), "S04").severity is Severity.ERROR


def test_what_may_grow_is_not_held_to_the_range_of_a_similarity() -> None:
    dpo = unstuck.surface(lambda chosen, rejected: -F.logsigmoid(0.1 * (chosen - rejected)))
    assert codes(dpo) == {"S06"}


# Healthy losses, as published


def smoothed(right: Tensor, wrong: Tensor) -> Tensor:
    scores = torch.stack([right, wrong, torch.zeros_like(right)], -1)
    logp = F.log_softmax(scores, -1)
    return -(0.9 * logp[..., 0] + 0.1 * logp.mean(-1))


def ctc(letter: Tensor, blank: Tensor) -> Tensor:
    """One letter in four frames that all have the same scores."""
    frame = F.log_softmax(torch.stack([blank.reshape(()), letter.reshape(()), torch.zeros(())]), 0)
    return F.ctc_loss(frame.expand(4, 1, 3), torch.ones(1, 1, dtype=torch.long), torch.tensor([4]), torch.tensor([1]))


HEALTHY: dict[str, tuple[Any, dict[str, Any]]] = {
    "cross entropy": (lambda right, wrong: F.softplus(wrong - right), {}),
    "cross entropy of a row": (
        lambda scores: F.cross_entropy(scores[None], torch.tensor([0])),
        {"x": ("scores[0]", -6, 6), "y": ("scores[1]", -6, 6), "fixed": {"scores": torch.zeros(5)}},
    ),
    "mean squared error": (F.mse_loss, {"x": ("input", -3, 3), "fixed": {"target": torch.tensor(1.0)}}),
    "binary cross entropy": (
        F.binary_cross_entropy_with_logits,
        {"x": ("input", -6, 6), "fixed": {"target": torch.ones(1)}},
    ),
    "binary cross entropy of probabilities": (
        F.binary_cross_entropy,
        {"x": ("input", 0.01, 0.99), "fixed": {"target": torch.zeros(1)}},
    ),
    "focal": (lambda logit: torch.sigmoid(-logit) ** 2 * F.softplus(-logit), {"x": ("logit", -6, 6)}),
    "focal with alpha": (lambda logit: 0.25 * torch.sigmoid(-logit) ** 2 * F.softplus(-logit), {"x": ("logit", -4, 4)}),
    "focal of probabilities": (lambda p: -((1 - p) ** 2) * p.log(), {"x": ("p", 0.01, 1)}),
    "label smoothing": (smoothed, {"x": ("right", -6, 6), "y": ("wrong", -6, 6)}),
    "huber": (F.huber_loss, {"x": ("input", -3, 3), "fixed": {"target": torch.tensor(0.5)}}),
    "dice": (lambda p, rest: 1 - (2 * p + 1) / (p + rest + 2), {"x": ("p", 0, 1), "y": ("rest", 0, 1)}),
    "triplet": (lambda d_pos, d_neg: torch.relu(d_pos - d_neg + 0.2), {}),
    "gaussian likelihood": (
        lambda mean, log_var: 0.5 * (log_var + (mean - 0.3) ** 2 * torch.exp(-log_var)),
        {"x": ("mean", -2, 2), "y": ("log_var", -2, 2)},
    ),
    "cosine": (lambda cos: 1 - cos, {}),
    "ctc": (ctc, {"x": ("letter", -4, 4, 15), "y": ("blank", -4, 4, 15)}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_losses_stay_clean(name: str) -> None:
    loss, options = HEALTHY[name]
    surface = unstuck.surface(loss, **options)
    assert codes(surface) <= {"S06"}, [found.message for found in surface.findings]


# What is said, and no more


def test_good_news_says_what_was_tried_and_against_what() -> None:
    surface = unstuck.surface(lambda a: (a - 1) ** 2, ("a", -3, 3))
    said = finding(surface, "S06")
    assert "over a from -3 to 3" in said.message
    assert "from 100 % of 40 starts" in said.message
    assert "whether that is the answer you want was not tested" in said.message
    aimed = unstuck.surface(lambda a: (a - 1) ** 2, ("a", -3, 3), desired={"a": (0.5, 1.5)})
    assert "not tested" not in finding(aimed, "S06").message
    for found in (said, finding(aimed, "S06")):
        assert "not the reason" not in found.cause


def test_a_gradient_that_fades_where_the_loss_is_highest_is_part_of_the_news() -> None:
    surface = unstuck.surface(lambda logit: (torch.sigmoid(logit) - 1) ** 2, ("logit", -6, 6))
    assert "where the loss is highest its gradient is 2 % of its largest" in finding(surface, "S06").message


def test_nothing_found_says_in_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("mine.py").write_text("def banana(x, y):\n    return (1 - x) ** 2 + 100 * (y - x**2) ** 2\n")
    assert main(["surface", "mine.py:banana", "--x", "x=-2:2", "--y", "y=-1:3"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Nothing found in banana over x from -2 to 2 and y from -1 to 3; 8 rules checked." in out
    assert "Not checked whether descent arrives:" in out
