"""Puts the observers of data, seeds and evaluations in place, and tells them when training goes on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unstuck.capture.detect.kept import KeptGraphs
from unstuck.capture.observers.batches import Batches
from unstuck.capture.observers.data import Loaders
from unstuck.capture.observers.evaluations import Evaluations
from unstuck.capture.observers.seeds import Seeds
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.watch import Watch


class Progress:
    """What happens around the steps of a training, and what a backward means to it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.evaluations = watch.evaluations = Evaluations(watch)
        self._batches = watch.batches = Batches(watch)
        self._loaders = Loaders(watch)
        self._seeds = Seeds(watch)
        self._kept = KeptGraphs(watch)

    def attach(self, patches: Patches) -> None:
        """Watch loaders and seeds, and gradients that are asked for without a backward."""
        self._loaders.attach(patches)
        self._seeds.attach(patches)
        patches.around(torch.autograd, "grad", self._grad, lambda *_: None)

    def finish(self) -> None:
        """The run ended."""
        self.evaluations.finish()
        self._batches.finish()
        self._loaders.finish()
        self._seeds.finish()

    def _grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.evaluations.gradients_asked()

    def backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A backward begins, in a sampled window."""
        self._loaders.backward()
        loss = args[0] if args else kwargs.get("tensors")
        if isinstance(loss, Tensor):
            retained = any(args[2:4]) or kwargs.get("retain_graph") or kwargs.get("create_graph")
            self._kept.backward(loss, bool(retained))
