"""Run by torchrun on two ranks: trains under DDP and FSDP2 and prints how far that is from one large batch, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from loops import data, small_model, weights

from unstuck import GradientManager
from unstuck.gradients import MisuseError

RANKS, BATCHES, ROWS, ACCUMULATE, CLIP = 2, 7, 4, 3, 0.1
INPUTS, LABELS = (tensor.unflatten(0, (RANKS, BATCHES, ROWS)) for tensor in data(RANKS * BATCHES * ROWS))
UNEQUAL = [[4, 1, 2, 3, 1, 4, 2], [2, 2, 4, 1, 3, 1, 1]]
EQUAL = [[ROWS] * BATCHES] * RANKS


def share(rank: int, index: int, counts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    rows = slice(counts[rank][index])
    return INPUTS[rank, index, rows], LABELS[rank, index, rows]


def large_batches(counts: Sequence[Sequence[int]], reduction: str) -> tuple[Tensor, list[float]]:
    """What one process makes of all the data of a window at once."""
    model, norms = small_model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    for start in range(0, BATCHES, ACCUMULATE):
        window = [(rank, i) for rank in range(RANKS) for i in range(start, min(start + ACCUMULATE, BATCHES))]
        x, y = (torch.cat(parts) for parts in zip(*(share(*place, counts) for place in window), strict=True))
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y, reduction=reduction).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
    return weights(model), norms


def replicated() -> tuple[nn.Module, nn.Module, list[int]]:
    model = small_model()
    wrapped, exchanges = DistributedDataParallel(model), [0]

    def count(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are strings
        exchanges[0] += 1
        return allreduce_hook(dist.group.WORLD, bucket)

    wrapped.register_comm_hook(None, count)
    return wrapped, model, exchanges


def sharded() -> tuple[nn.Module, nn.Module, list[int]]:
    model = small_model()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model, model, [0]


def trained(
    kind: str, counts: Sequence[Sequence[int]] | None, reduction: Any = "mean", **options: Any
) -> dict[str, Any]:
    """Distances to the large batches, and the number of all-reduces that DDP made."""
    wrapped, model, exchanges = replicated() if kind == "ddp" else sharded()
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01, eps=1e-4)
    manager = GradientManager(wrapped, optimizer, accumulate=ACCUMULATE, clip=CLIP, reduction=reduction, **options)
    rank, norms, items = dist.get_rank(), [], []
    for index in manager.batches(range(BATCHES)):
        x, y = share(rank, index, counts or EQUAL)
        loss = functional.cross_entropy(wrapped(x), y, reduction=reduction)
        manager.backward(loss, count=counts[rank][index] if counts else None)
        step = manager.step()
        if step.updated:
            norms.append(step.norm or 0.0)
            items.append(step.items)
    expected, expected_norms = large_batches(counts or EQUAL, "mean" if counts else reduction)
    found = torch.cat([whole(parameter).flatten() for parameter in model.parameters()])
    return {
        "distance": float((found - expected).abs().max()),
        "norm_distance": max(abs(one - other) / other for one, other in zip(norms, expected_norms, strict=True)),
        "exchanges": exchanges[0],
        "items": items,
        "same_on_all_ranks": same_on_all_ranks(found),
    }


def whole(parameter: Tensor) -> Tensor:
    return (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach()


def same_on_all_ranks(values: Tensor) -> bool:
    gathered = [torch.empty_like(values) for _ in range(RANKS)]
    dist.all_gather(gathered, values)
    return torch.equal(*gathered)


def left_early() -> str:
    wrapped, _, _ = replicated()
    manager = GradientManager(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1), accumulate=3)
    for index in manager.batches(range(3)):
        manager.backward(functional.cross_entropy(wrapped(INPUTS[0, index]), LABELS[0, index]))
        manager.step()
        break
    assert wrapped.require_backward_grad_sync, "no_sync() outlived its micro-step"
    try:
        manager.finish()
    except MisuseError as error:
        return str(error)
    return ""


def overflow_on_one_rank() -> dict[str, Any]:
    """Only the shard of one rank overflows: the ranks must agree on the next scale, and on skipping."""
    model = nn.Sequential(nn.Linear(5, 2, bias=False))
    fully_shard(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    manager = GradientManager(model, torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
    weight = torch.tensor([[1.0], [1.0]])
    for huge in (float("inf"), 1.0):
        weight[1] = huge  # the second output, whose row of weights lies on the second rank
        manager.backward((model(torch.ones(4, 5)) @ weight).mean())
        manager.step()
    scales = [torch.zeros(()) for _ in range(RANKS)]
    dist.all_gather(scales, torch.tensor(scaler.get_scale()))
    return {"scales": [float(scale) for scale in scales], "steps": manager.steps, "skipped": manager.skipped}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results: dict[str, Any] = {}
    for kind in ("ddp", "fsdp"):
        results[f"{kind} mean"] = trained(kind, None)
        results[f"{kind} sum"] = trained(kind, None, "sum")
        results[f"{kind} tokens"] = trained(kind, UNEQUAL)
        results[f"{kind} token sums"] = trained(kind, UNEQUAL, "sum")
        results[f"{kind} noise"] = trained(kind, None, noise=0.1)
    results["ddp scaler"] = trained("ddp", UNEQUAL, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    results["fsdp scaler"] = trained("fsdp", UNEQUAL, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    results["overflow"] = overflow_on_one_rank()
    results["left early"] = left_early()
    if dist.get_rank() == 0:
        print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
