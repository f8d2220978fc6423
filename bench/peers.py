"""What people use instead of a watch, each put around the same loop. Those that are not installed are left out."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable

import torch
from workloads import Workload

Runner = Callable[[Workload, int], float]


def _timed(work: Workload, steps: int, before_step: Callable[[], None]) -> float:
    start = time.process_time()
    work.run(steps, before_step)
    return (time.process_time() - start) / steps


def clipping(bare: Runner) -> Runner:
    """One `clip_grad_norm_` per step."""
    return lambda work, steps: _timed(
        work, steps, lambda: torch.nn.utils.clip_grad_norm_(work.model.parameters(), 1e9) and None
    )


def logging(bare: Runner) -> Runner:
    """Four numbers of each gradient at every step, the usual advice."""

    def run(work: Workload, steps: int) -> float:
        def log() -> None:
            for _, parameter in work.model.named_parameters():
                if (gradient := parameter.grad) is not None:
                    (gradient.norm().item(), parameter.detach().norm().item(), gradient.mean().item())
                    (gradient.std().item(), gradient.abs().max().item())

        return _timed(work, steps, log)

    return run


def anomaly(bare: Runner) -> Runner:
    """torch's anomaly mode."""

    def run(work: Workload, steps: int) -> float:
        with torch.autograd.detect_anomaly(check_nan=True):
            return bare(work, steps)

    return run


def tensorboard(bare: Runner) -> Runner:
    """Histograms of weights and gradients at every step."""

    def run(work: Workload, steps: int) -> float:
        from torch.utils.tensorboard import SummaryWriter

        with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:

            def log() -> None:
                for name, parameter in work.model.named_parameters():
                    writer.add_histogram(name, parameter.detach(), 0)
                    if parameter.grad is not None:
                        writer.add_histogram(f"{name}/grad", parameter.grad, 0)

            return _timed(work, steps, log)

    return run


def wandb(bare: Runner) -> Runner:
    """`wandb.watch(model, log="all", log_freq=1)`, offline."""

    def run(work: Workload, steps: int) -> float:
        import wandb as peer

        with tempfile.TemporaryDirectory() as folder, peer.init(mode="offline", dir=folder) as session:
            session.watch(work.model, log="all", log_freq=1)
            try:
                return _timed(work, steps, lambda: session.log({}))
            finally:
                session.unwatch(work.model)

    return run


_ALL: dict[str, tuple[str, Callable[[Runner], Runner]]] = {
    "clip": ("torch", clipping),
    "logging": ("torch", logging),
    "anomaly": ("torch", anomaly),
    "tensorboard": ("tensorboard", tensorboard),
    "wandb": ("wandb", wandb),
}
PEERS = {name: peer for name, (package, peer) in _ALL.items() if importlib.util.find_spec(package)}
