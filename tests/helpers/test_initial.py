"""Where training starts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from unstuck.helpers import init_final_bias, init_weights, suggest_init


def test_the_bias_of_a_classifier_is_its_prior() -> None:
    labels = torch.tensor([0] * 80 + [1] * 15 + [2] * 5)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    bias = init_final_bias(model, labels)
    assert torch.equal(bias, model[2].bias)
    assert bias.softmax(0).tolist() == pytest.approx([0.8, 0.15, 0.05], abs=0.01)
    model[2].weight.data.zero_()
    entropy = -sum(p * math.log(p) for p in (0.8, 0.15, 0.05))
    assert functional.cross_entropy(model(torch.randn(100, 4)), labels).item() == pytest.approx(entropy, rel=0.01)


def test_the_bias_of_rare_positives_is_their_logit() -> None:
    targets = torch.tensor([1.0] * 10 + [0.0] * 90)
    assert float(init_final_bias(nn.Linear(2, 1), targets).sigmoid()) == pytest.approx(0.1, abs=0.01)
    assert float(init_final_bias(nn.Linear(2, 1), targets.long()).sigmoid()) == pytest.approx(0.1, abs=0.01)
    assert float(init_final_bias(nn.Linear(2, 1), targets.bool()[:, None]).sigmoid()) == pytest.approx(0.1, abs=0.01)


def test_many_labels_each_have_their_own() -> None:
    columns = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]).repeat(50, 1)
    assert init_final_bias(nn.Linear(2, 3), columns).sigmoid().tolist() == pytest.approx([1, 0.5, 0], abs=0.01)


def test_probabilities_of_classes() -> None:
    soft = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]]).repeat(200, 1)
    assert init_final_bias(nn.Linear(2, 3), soft).softmax(0).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.01)
    one_hot = functional.one_hot(torch.tensor([0] * 30 + [1] * 10)).float()
    assert init_final_bias(nn.Linear(2, 2), one_hot).softmax(0).tolist() == pytest.approx([0.75, 0.25], abs=0.02)


def test_the_bias_of_a_regression_is_the_mean() -> None:
    assert float(init_final_bias(nn.Linear(2, 1), torch.tensor([40.0, 60.0]))) == pytest.approx(50)
    assert float(init_final_bias(nn.Linear(2, 1), torch.tensor([[3], [4]]))) == pytest.approx(3.5)
    two = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    assert init_final_bias(nn.Linear(2, 2), two).tolist() == [2, 20]


def test_all_labels_equal_stays_finite() -> None:
    assert init_final_bias(nn.Linear(2, 1), torch.ones(50)).isfinite().all()
    assert init_final_bias(nn.Linear(2, 5), torch.full((50,), 3)).isfinite().all()


def test_padding_is_no_class_and_pictures_are_many_labels() -> None:
    labels = torch.tensor([[[0, -100], [1, 0]]])
    bias = init_final_bias(nn.Conv2d(3, 2, 1), labels)
    assert bias[0] > bias[1]


@pytest.mark.parametrize(
    ("outputs", "targets", "words"),
    [
        (3, torch.tensor([], dtype=torch.long), "no targets"),
        (3, torch.tensor([-100, -100]), "no targets"),
        (3, torch.tensor([1, 3]), r"from 1 to 3 do not fit a last layer with 3 outputs: see remap_labels\(\)"),
        (3, torch.randn(4, 2), r"shape \[4, 2\] do not fit a last layer with 3 outputs"),
        (3, torch.randn(3, 2), r"shape \[3, 2\] do not fit"),
        (1, torch.tensor([1.0, math.nan]), "NaN or infinite"),
    ],
)
def test_targets_that_do_not_fit(outputs: int, targets: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        init_final_bias(nn.Linear(2, outputs), targets)


def test_layers_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="no bias to set"):
        init_final_bias(nn.Linear(2, 2, bias=False), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="no linear or convolutional layer"):
        init_final_bias(nn.ReLU(), torch.tensor([0, 1]))
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    init_final_bias(model, torch.tensor([0, 1]), layer=model[0])


def methods(model: nn.Module) -> list[tuple[str, str, str]]:
    return [(it.layer, it.method, it.follows) for it in suggest_init(model)]


def test_what_follows_decides() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4, 4),
        nn.Dropout(),
        nn.Tanh(),
        nn.Linear(4, 2),
    )
    assert methods(model) == [("0", "He", "relu"), ("4", "Xavier", "tanh"), ("7", "Xavier", "output")]


def test_functions_in_forward_are_seen() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 2)  # made first, used last
            self.norm = nn.LayerNorm(4)
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = functional.gelu(self.norm(self.first(x)))
            return self.out(torch.tanh(self.second(x) + x))

    assert methods(Net()) == [("out", "Xavier", "output"), ("first", "He", "gelu"), ("second", "Xavier", "tanh")]


def test_what_cannot_be_traced_is_read_in_order() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.out = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:  # no tracing through a question about values
                x = -x
            return self.out(self.body(x))

    assert methods(Net()) == [("body.0", "He", "relu"), ("out", "Xavier", "output")]


def test_a_deep_stack_keeps_its_scale() -> None:
    """The point of it all: 30 layers at the default lose the signal, 30 layers as suggested do not."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(30) for layer in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, 1))
    x = torch.randn(256, 64)
    assert float(model[:-1](x).detach().var(0).mean()) < 1e-9  # all examples look the same
    done = init_weights(model)
    assert 1e-3 < float(model[:-1](x).detach().var(0).mean()) < 10
    assert done[0].std == pytest.approx(math.sqrt(2 / 64))
    assert done[0].std_now == pytest.approx(1 / math.sqrt(3 * 64), rel=0.1)
    assert all(not layer.bias.any() for layer in model if isinstance(layer, nn.Linear))
    assert suggest_init(nn.ReLU()) == []
