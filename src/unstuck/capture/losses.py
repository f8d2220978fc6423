"""Watches calls of torch's loss functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unstuck.capture import graph
from unstuck.capture.nonfinite import Inspector
from unstuck.capture.tensors import fact, is_plain, may_measure, reading
from unstuck.capture.watch import Watch
from unstuck.events import LossCall, Place

NAMES = (
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
)
_CLASS_LOSSES = ("cross_entropy", "nll_loss")
_FULL_READS = 5
_THEN_EVERY = 100


class Losses:
    """Records loss calls: what came in, what came out, and what a softmax in front costs in gradient."""

    def __init__(self, watch: Watch, inspector: Inspector) -> None:
        self._watch = watch
        self._inspector = inspector
        self._calls: dict[Place | None, int] = {}
        self._inside = False

    def observer(self, name: str) -> tuple[Any, Any]:
        """The pair to put around one of the functions."""
        return (lambda args, kwargs: self._before(name, args, kwargs)), self._after

    def _before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        if self._inside or not self._watch.is_listening():
            return None
        self._inspector.loss_name = name
        if not self._watch.clock.sampled:
            return None
        self._inside = True
        return name, args, kwargs

    def _after(self, call: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        self._inside = False
        if error is None:
            self._record(call[0], call[1], call[2], result)

    def _record(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        watch = self._watch
        source = args[0] if args else kwargs.get("input")
        target = args[1] if len(args) > 1 else kwargs.get("target")
        if not isinstance(source, Tensor) or not isinstance(target, Tensor) or not isinstance(result, Tensor):
            return
        place = watch.places.here()
        count = self._calls[place] = self._calls.get(place, 0) + 1
        closely = count <= _FULL_READS or count % _THEN_EVERY == 0
        classes = name in _CLASS_LOSSES and source.dim() > 0
        made_by = graph.made_by(source)
        kept = None
        if closely and name == "cross_entropy" and made_by.startswith("SoftmaxBackward"):
            kept = gradient_kept(source, target, _ignored(kwargs))
        readable = is_plain(result) and result.numel() == 1 and may_measure()
        watch.emit(
            LossCall(
                step=watch.clock.steps,
                place=place,
                loss=name,
                input=fact(
                    source,
                    made_by=made_by,
                    ranged=closely,
                    class_axis=class_axis(source) if classes else None,
                ),
                target=fact(target, ranged=closely),
                output_requires_grad=result.requires_grad,
                value=watch.scalars.later(result) if readable else None,
                gradient_kept=kept,
            )
        )


def class_axis(source: Tensor) -> int:
    """Where torch's classification losses expect the classes."""
    return 0 if source.dim() == 1 else 1


def gradient_kept(probabilities: Tensor, target: Tensor, ignored: int = -100) -> float | None:
    """The share of the gradient's norm that an extra softmax before cross entropy lets through."""
    if target.is_floating_point() or not is_plain(probabilities) or not may_measure():
        return None
    with reading():
        p = probabilities.detach().double().movedim(class_axis(probabilities), -1)
        p = p.reshape(-1, p.shape[-1])
        labels = target.detach().reshape(-1).to(p.device)
        counted = labels != ignored
        p, labels = p[counted], labels[counted].long()
        if labels.numel() == 0:
            return None
        one_hot = torch.zeros_like(p).scatter_(1, labels[:, None], 1.0)
        right = p - one_hot
        outer = torch.softmax(p, 1) - one_hot
        through = p * (outer - (p * outer).sum(1, keepdim=True))
        whole = float(right.norm())
        return float(through.norm()) / whole if whole > 0 else None


def _ignored(kwargs: dict[str, Any]) -> int:
    return int(kwargs.get("ignore_index", -100))
