"""Parameter groups, freezing and unfreezing."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

from unstuck.helpers import GradualUnfreezing, decay_groups, freeze, layerwise_lr


class Tiny(nn.Module):
    """A transformer in outline: tied head, norm layers inside blocks, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(1, 4, 8))
        self.embed = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(8), "wide": nn.Linear(8, 16), "narrow": nn.Linear(16, 8)})
            for _ in range(3)
        )
        self.head = nn.Linear(8, 10)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.position
        for block in self.blocks:
            x = x + block["narrow"](block["wide"](block["norm"](x)).relu())  # type: ignore[index]
        scores: Tensor = self.head(x)
        return scores


def names(model: nn.Module, parameters: list[Tensor]) -> set[str]:
    known = {parameter: name for name, parameter in model.named_parameters()}
    return {known[parameter] for parameter in parameters}


def test_what_decays_and_what_does_not() -> None:
    model = Tiny()
    decays, does_not = decay_groups(model, 0.1)
    assert (decays["weight_decay"], does_not["weight_decay"]) == (0.1, 0.0)
    assert names(model, decays["params"]) == {
        "position",
        "embed.weight",
        *(f"blocks.{i}.{part}.weight" for i in range(3) for part in ("wide", "narrow")),
    }
    assert len(decays["params"]) + len(does_not["params"]) == len([*model.parameters()])
    torch.optim.AdamW([decays, does_not])  # which refuses a parameter that comes twice


def test_names_and_norms_are_exempt_whatever_their_shape() -> None:
    class ScaleNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(4, 1, 1))

    model = nn.ModuleDict({"conv": nn.Conv2d(3, 4, 3), "scale": ScaleNorm(), "tokens": nn.Embedding(3, 4)})
    decays, does_not = decay_groups(model, no_decay=["tokens"])
    assert names(model, decays["params"]) == {"conv.weight"}
    assert names(model, does_not["params"]) == {"conv.bias", "scale.gain", "tokens.weight"}
    model["tied"] = nn.Linear(4, 3)
    model["tied"].weight = model["tokens"].weight
    assert names(model, decay_groups(model, no_decay=["tied"])[0]["params"]) == {"conv.weight"}


def test_frozen_parameters_and_empty_groups_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3))
    model[1].requires_grad_(False)
    assert [len(group["params"]) for group in decay_groups(model)] == [1]
    model.requires_grad_(False)
    for helper in (decay_groups, lambda model: layerwise_lr(model, 0.1)):
        with pytest.raises(ValueError, match="no trainable parameter"):
            helper(model)


def test_each_layer_learns_slower_than_the_next() -> None:
    model = Tiny()
    groups = layerwise_lr(model, 1.0, 0.5)
    assert [group["name"] for group in groups] == ["embed", "blocks.0", "blocks.1", "blocks.2", "head"]
    assert [group["lr"] for group in groups] == [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0]
    assert names(model, groups[0]["params"]) == {"position", "embed.weight"}  # the head shares it: the slower rate wins
    assert names(model, groups[-1]["params"]) == {"head.bias"}
    split = layerwise_lr(model, 1.0, 0.5, weight_decay=0.1)
    assert sum(len(group["params"]) for group in split) == len([*model.parameters()])
    assert {(group["name"], group["weight_decay"]) for group in split if group["name"] == "blocks.0"} == {
        ("blocks.0", 0.1),
        ("blocks.0", 0.0),
    }
    torch.optim.AdamW(split)


def test_wrappers_are_looked_through_and_layers_can_be_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    wrapped = nn.ModuleDict({"module": model})
    assert [group["name"] for group in layerwise_lr(wrapped, 1.0)] == ["module.0", "module.2"]
    assert [group["lr"] for group in layerwise_lr(model, 1.0, 0.1, layers=[model[2], model[0]])] == [0.1, 1.0]
    assert len(layerwise_lr(nn.Linear(2, 2), 1.0)) == 1
    with pytest.raises(ValueError, match="at most 1"):
        layerwise_lr(model, 1.0, 1.5)


def backbone() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5))


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        model.train()
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def test_frozen_means_not_a_bit_changes() -> None:
    """Weights, decay, momentum and running statistics, with everything that could still move them."""
    model = nn.Sequential(backbone(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    trained(model, optimizer)
    frozen = freeze(model[0], optimizer)
    before = copy.deepcopy(model[0].state_dict())
    head = model[1].weight.detach().clone()
    trained(model, optimizer)
    assert all(torch.equal(before[key], value) for key, value in model[0].state_dict().items())
    assert not torch.equal(head, model[1].weight)
    assert len(optimizer.param_groups) == 1  # schedulers count the groups
    frozen.undo()
    frozen.undo()
    trained(model, optimizer)
    assert not any(torch.equal(before[key], value) for key, value in model[0].state_dict().items())
    assert len(optimizer.param_groups[0]["params"]) == len([*model.parameters()])


def test_a_frozen_model_can_be_copied_and_saved() -> None:
    model = backbone()
    freeze(model)
    file = io.BytesIO()
    torch.save(copy.deepcopy(model), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False).train()
    before = loaded[1].running_mean.clone()
    loaded(torch.randn(8, 4))
    assert torch.equal(before, loaded[1].running_mean)


def test_undo_leaves_alone_what_was_frozen_before() -> None:
    model = backbone()
    model[0].bias.requires_grad_(False)
    freeze(model).undo()
    assert (model[0].weight.requires_grad, model[0].bias.requires_grad) == (True, False)
    frozen = freeze(nn.ReLU())
    assert frozen.parameters == []


def test_unfreezing_from_the_head_down() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    unfreezing = GradualUnfreezing(model, optimizer)
    moved = []
    for _ in range(4):
        before = [layer.weight.detach().clone() for layer in model]
        trained(model, optimizer)
        moved.append([not torch.equal(old, layer.weight) for old, layer in zip(before, model, strict=True)])
        unfreezing.thaw()
    assert moved == [
        [False, False, False, True],
        [False, False, True, True],
        [False, True, True, True],
        [True, True, True, True],
    ]
    assert (unfreezing.frozen, unfreezing.thaw()) == ([], [])
    with pytest.raises(ValueError, match="at least two layers"):
        GradualUnfreezing(nn.Linear(2, 2))


def test_a_tied_head_is_not_frozen_with_the_embedding() -> None:
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unfreezing = GradualUnfreezing(model, optimizer)
    assert model.head.weight.requires_grad
    assert names(model, optimizer.param_groups[0]["params"]) == {"position", "embed.weight", "head.bias"}
    assert not model.blocks[0].wide.weight.requires_grad  # type: ignore[union-attr]
    assert unfreezing.thaw(2) == ["blocks.2", "blocks.1"]
    assert unfreezing.frozen == ["embed", "blocks.0"]
