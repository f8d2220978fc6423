"""How long surfaces take, as ratios to the naive loop over points and, if it is installed, to loss-landscapes.

    python bench/surface.py [ROUNDS]

Contestants take turns, so that a busy machine slows all of them alike; medians are compared. For the rival:
pip install --no-deps --target /tmp/rival loss-landscapes, then PYTHONPATH=/tmp/rival python bench/surface.py
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

import unstuck.surface
from unstuck.findings.surface import Axis
from unstuck.surface.field import Field, field_of
from unstuck.surface.loss import bind
from unstuck.surface.shape.checks import samples_for_method
from unstuck.surface.shape.regions import points_of

BUDGETS = {"80 x 80": 3.0, "512 x 512": 3000.0}
FASTER_THAN_LOOP, FASTER_THAN_RIVAL = 250.0, 2.0


def elementwise(x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.softplus(y - x) + 0.1 * (x * x + y * y)


def reducing(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([nn.functional.softplus(y - x), 0.1 * x * x, 0.1 * y * y]).sum()


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    torch.set_num_threads(1)  # threads that wait for each other on a busy machine are all one would measure
    kept = [*compare_grids(rounds), *compare_planes(rounds)]
    return 0 if all(kept) else 1


def compare_grids(rounds: int) -> list[bool]:
    """A loss and its gradients on a grid, against the loop everybody writes first."""
    points, many = grid(80), grid(512)
    plain, mapped = field(elementwise, points), field(reducing, points)
    times = take_turns(
        {
            "80 x 80, vectorised": lambda: plain(points),
            "80 x 80, vmap": lambda: mapped(points),
            "512 x 512, vectorised": lambda: plain(many),
            "512 x 512, vmap": lambda: mapped(many),
            "80 x 80, whole surface": lambda: unstuck.surface(elementwise, ("x", -3, 3), ("y", -3, 3)),
            "512 x 512, whole surface": lambda: unstuck.surface(elementwise, ("x", -3, 3), ("y", -3, 3), points=512),
        },
        rounds,
    )
    loop = take_turns({"80 x 80, naive loop": lambda: naive(elementwise, points)}, 1)["80 x 80, naive loop"]
    kept = [show(name, value, budget_of(name)) for name, value in times.items()]
    print(f"{'80 x 80, naive loop':<28} {loop:>9.1f} ms")
    return [*kept, ratio("vectorised : naive loop", loop / times["80 x 80, vectorised"], FASTER_THAN_LOOP)]


def compare_planes(rounds: int) -> list[bool]:
    """A 40 x 40 plane of three models: one waits for Python, the others for their own arithmetic."""
    torch.manual_seed(0)
    small = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    wide = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    conv = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 7 * 7, 10)),
    )
    models = {
        "small": (small, (torch.randn(64, 8), torch.randint(0, 4, (64,)))),
        "wide": (wide, (torch.randn(256, 32), torch.randint(0, 10, (256,)))),
        "conv": (conv, (torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,)))),
    }
    return [kept for name, (model, batch) in models.items() for kept in compare_plane(name, model, batch, rounds)]


def compare_plane(name: str, model: nn.Module, batch: tuple[Tensor, Tensor], rounds: int) -> list[bool]:
    criterion = nn.CrossEntropyLoss()
    ours, theirs = f"40 x 40, {name} model", f"  loss-landscapes, {name}"
    runs: dict[str, Callable[[], object]] = {
        ours: lambda: unstuck.surface.landscape(model, criterion, batch, eigenvalues=0)
    }
    if importlib.util.find_spec("loss_landscapes"):
        runs[theirs] = lambda: rival(model, criterion, batch)
    times = take_turns(runs, min(rounds, 5))
    for label, value in times.items():
        show(label, value, None)
    if theirs not in times:
        print("loss-landscapes is not installed, so it was not compared with.")
        return []
    return [ratio(f"{name} model's plane : loss-landscapes", times[theirs] / times[ours], FASTER_THAN_RIVAL)]


def rival(model: nn.Module, criterion: nn.Module, batch: tuple[Tensor, Tensor]) -> object:
    import loss_landscapes
    from loss_landscapes.metrics import Loss

    metric = Loss(criterion, *batch)
    return loss_landscapes.random_plane(model, metric, 10, 40, normalization="filter", deepcopy_model=True)


def grid(count: int) -> np.ndarray:
    return points_of([Axis(name, np.linspace(-3, 3, count)) for name in ("x", "y")])


def field(loss: Callable[..., Tensor], points: np.ndarray) -> Field:
    axes = [Axis(name, np.unique(column)) for name, column in zip(("x", "y"), points.T, strict=True)]
    return field_of(bind(loss, ["x", "y"], {}, torch.float32), samples_for_method(axes), torch.float32)


def naive(loss: Callable[..., Tensor], points: np.ndarray) -> list[tuple[float, float, float]]:
    """What five minutes of scripting give: a call and a backward for every point."""
    found = []
    for first, second in points:
        x = torch.tensor(first, dtype=torch.float32, requires_grad=True)
        y = torch.tensor(second, dtype=torch.float32, requires_grad=True)
        value = loss(x, y)
        value.backward()
        found.append((value.item(), x.grad.item(), y.grad.item()))
    return found


def take_turns(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of its own computing that each took, after one round that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            started = time.thread_time()
            run()
            times[name].append(1000 * (time.thread_time() - started))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def budget_of(name: str) -> float | None:
    return None if name == "80 x 80, whole surface" else BUDGETS[name.split(",")[0]]


def show(name: str, value: float, budget: float | None) -> bool:
    kept = budget is None or value <= budget
    held = "" if budget is None else f"  budget {budget:g} ms{'' if kept else ': EXCEEDED'}"
    print(f"{name:<28} {value:>9.1f} ms{held}")
    return kept


def ratio(name: str, value: float, wanted: float) -> bool:
    print(f"{name:<36} {value:>7.1f} times faster  (wanted {wanted:g}){'' if value >= wanted else ': MISSED'}")
    return value >= wanted


if __name__ == "__main__":
    sys.exit(main())
