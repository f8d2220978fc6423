"""Observes calls of torch's loss functions, and of softmaxes without an axis."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.detect import graph
from unstuck.capture.detect.nonfinite import Inspector
from unstuck.capture.measure.answers import BINARY_LOSSES, reduction_of
from unstuck.capture.measure.tensors import fact, is_plain, may_measure, reading
from unstuck.capture.observers.data import Batches
from unstuck.capture.observers.evaluations import Evaluations
from unstuck.capture.observers.pairs import Pairs
from unstuck.capture.observers.scores import Scores
from unstuck.capture.observers.soft_targets import SoftTargets
from unstuck.capture.players.players import Players
from unstuck.capture.tasks.tasks import Tasks
from unstuck.capture.torch_hooks.patches import Patches, has_compiled
from unstuck.capture.window import Observer, Watch
from unstuck.events import AxisGuessed, Gauges, LossCall, Place, Scored, TensorFact
from unstuck.events.losses import CLASS_LOSSES

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
    "gaussian_nll_loss",
)
_PARAMETERS = {name: tuple(inspect.signature(getattr(F, name)).parameters) for name in NAMES}
_CTC = tuple(inspect.signature(F.ctc_loss).parameters)
_CTC_EXAMPLES = 8
_FULL_READS = 5
_THEN_EVERY = 100
"""On a device, where reading means waiting for it."""
_OFTEN = 10
_SOFTMAXES = ("softmax", "log_softmax", "softmin")
_MOST_PLACES = 16
_SCORE_EVERY = 10
_SCORE_BUDGET = 0.002
"""The share of a run's time that scores between sampled windows may cost, once they have cost this many seconds."""
_SCORE_SECONDS = 0.1


class Losses(Observer):
    """Records loss calls: what came in, what came out, and what a softmax before the loss costs in gradient."""

    def __init__(
        self,
        watch: Watch,
        inspector: Inspector,
        evaluations: Evaluations,
        batches: Batches,
        pairs: Pairs,
        soft_targets: SoftTargets,
        scores: Scores,
        players: Players,
        tasks: Tasks,
    ) -> None:
        self._watch = watch
        self._players = players
        self._tasks = tasks
        self._scores = scores
        self._inspector = inspector
        self._evaluations = evaluations
        self._batches = batches
        self._pairs = pairs
        self._compare_soft_targets = watch.guard.protect("soft targets", soft_targets.loss)
        self._patches: Patches | None = None
        self._names: set[str] = set()
        """Of those that were called, as they are called in the list of patches."""
        self._is_suspended = False
        self._calls: dict[Place | None, int] = {}
        self._next_score = 0
        """The number of the next window in which calls are scored though it is not sampled."""
        self._score_seconds = self._spent = 0.0
        self._passed = 0
        self._inside = False

    def attach(self, patches: Patches) -> None:
        """Observe the functions; modules call them too."""
        self._patches = patches
        for name in NAMES:
            before = partial(self._before, name)
            patches.around(F, name, before, self._after, skip=self._is_unwanted)

    def sampling_changed(self, sampled: bool) -> None:
        """Functions whose calls nobody wants to know of run their own code."""
        self._suspend(self._is_unwanted())

    def window_rested(self, step: int, optimizer: Optimizer, defer: Callable[[Gauges], None] | None) -> None:
        """It may be time for the next score."""
        if self._is_suspended and self._watch.window.number >= self._next_score:
            self._suspend(False)

    def _suspend(self, on: bool) -> None:
        if self._patches is None or self._is_suspended is on or (on and has_compiled()):
            return
        self._is_suspended = on
        for name in self._names:
            (self._patches.suspend if on else self._patches.resume)(name)

    def _is_unwanted(self) -> bool:
        """Between sampled windows some calls are scored, or the end of a long run would rest on a handful of them."""
        window = self._watch.window
        return not window.sampled and not window.attentive and window.number < self._next_score

    def _before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        if self._inside or not self._watch.is_listening():
            return None
        self._inspector.loss_name = name
        self._names.add(f"{F.__name__}.{name}")
        self._inside = True
        return name, args, kwargs

    def _after(self, call: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        self._inside = False
        if error is None:
            self._record(call[0], call[1], call[2], result)

    def _record(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        watch = self._watch
        given = dict(zip(_PARAMETERS[name], args, strict=False)) | kwargs
        source, target = given.get("input"), given.get("target")
        if not isinstance(source, Tensor) or not isinstance(target, Tensor) or not isinstance(result, Tensor):
            return
        if watch.window.is_resting():
            self._score_in_passing(name, given, (source, target, result))
            return
        self._evaluations.loss(name, source, target, result)
        self._batches.compared(name, source, target)
        if not watch.window.sampled:
            return
        place = watch.places.here()
        self._pairs.loss(name, source, target, place)
        self._compare_soft_targets(name, source, target, place)
        self._players.compared(target)
        if name == "cross_entropy":
            self._players.matched(source, target, place)
        count = self._calls[place] = self._calls.get(place, 0) + 1
        often = _OFTEN if watch.scalars.is_immediate(result) else _THEN_EVERY
        closely = count <= _FULL_READS or count % often == 0
        axis = _axis(name, source)
        node = graph.origin(source)
        ignored = int(given.get("ignore_index", -100)) if name in CLASS_LOSSES else None
        self._tasks.compared(name, source, target, ignored, place)
        predicted = fact(
            source,
            made_by="" if node is None else str(node.name()),
            axis=graph.softmax_axis(node),
            ranged=closely,
            class_axis=axis,
        )
        wanted = fact(
            target, ranged=closely, class_axis=axis if target.shape == source.shape else None, ignored=ignored
        )
        readable = is_plain(result) and result.numel() == 1 and may_measure()
        watch.emit(
            LossCall(
                step=watch.window.steps,
                place=place,
                loss=name,
                input=predicted,
                target=wanted,
                output_requires_grad=result.requires_grad,
                value=watch.scalars.later(result) if readable else None,
                gradient_kept=_kept(name, predicted.made_by, source, target, ignored) if closely else None,
                reduction=reduction_of(given),
                ignored=_share_left_out(target, wanted) if ignored is not None else None,
                weighted=given.get("weight") is not None or given.get("pos_weight") is not None,
                grad_enabled=torch.is_grad_enabled(),
                variance=fact(given["var"], ranged=closely) if isinstance(given.get("var"), Tensor) else None,
                classes_were=graph.lost_classes(source) if closely and name in CLASS_LOSSES else None,
            )
        )
        if result.requires_grad:
            self._evaluations.trained_on(name, source, target)
        if result.requires_grad and watch.window.has_room(Scored):
            self._scores.score(name, given, (source, target, result), place, closely)

    def _score_in_passing(self, name: str, given: dict[str, Any], call: tuple[Tensor, Tensor, Tensor]) -> None:
        """Score a call of a window that is not sampled, as often as that is cheap."""
        window = self._watch.window
        if call[2].requires_grad and self._watch.scalars.is_immediate(call[1]):
            began = perf_counter()
            self._passed += 1
            self._scores.score(name, given, call, self._watch.places.here(), closely=self._passed % _OFTEN == 0)
            seconds = perf_counter() - began
            self._spent += seconds
            self._score_seconds = max(seconds, 0.9 * self._score_seconds)
        free = self._spent < _SCORE_SECONDS
        pause = 0.0 if free else self._score_seconds / (_SCORE_BUDGET * max(window.typical_seconds, 1e-6))
        self._next_score = window.number + max(_SCORE_EVERY, min(10_000, math.ceil(pause)))
        self._suspend(True)


class CtcLosses(Observer):
    """Records calls of `ctc_loss`: are its scores log-probabilities, and is the blank among its targets?"""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def attach(self, patches: Patches) -> None:
        """Observe the function; the module calls it too."""
        patches.around(F, "ctc_loss", self._before, self._after, skip=self._watch.window.is_resting)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        watched = self._watch.window.sampled and self._watch.is_listening()
        return dict(zip(_CTC, args, strict=False)) | kwargs if watched else None

    def _after(self, given: dict[str, Any], result: Any, error: BaseException | None) -> None:
        scores, targets = given.get("log_probs"), given.get("targets")
        if error is not None or not (isinstance(scores, Tensor) and isinstance(targets, Tensor)):
            return
        if not (isinstance(result, Tensor) and is_plain(scores) and may_measure()) or not scores.is_cpu:
            return
        with reading():
            labels = _ctc_labels(targets.detach(), given.get("target_lengths"))
            blanks = float((labels == int(given.get("blank", 0))).double().mean()) if labels.numel() else None
            total = _ctc_total(scores.detach(), given.get("input_lengths"))
        self._watch.emit(
            LossCall(
                step=self._watch.window.steps,
                place=self._watch.places.here(),
                loss="ctc_loss",
                output_requires_grad=result.requires_grad,
                reduction=reduction_of(given),
                blanks=blanks,
                log_total=total,
            )
        )


def _ctc_total(scores: Tensor, lengths: Any) -> float | None:
    """How far the frames that count are from log-probabilities. Frames beyond their length may hold anything."""
    lengths = torch.as_tensor(lengths if lengths is not None else ()).reshape(-1)
    if scores.dim() != 3 or len(lengths) != scores.shape[1]:
        return None
    few = scores[:, :_CTC_EXAMPLES].double().logsumexp(-1).abs()
    counted = few[torch.arange(len(few))[:, None] < lengths[None, :_CTC_EXAMPLES]]
    return float(counted.mean()) if counted.numel() else None


def _ctc_labels(targets: Tensor, lengths: Any) -> Tensor:
    """The labels that count: targets are padded to a table, or written one after another."""
    lengths = torch.as_tensor(lengths if lengths is not None else ()).reshape(-1)
    if targets.dim() != 2 or len(lengths) != len(targets):
        return targets.reshape(-1)
    return targets[torch.arange(targets.shape[1]) < lengths[:, None]]


class Softmaxes(Observer):
    """Follows softmaxes that are called without `dim`: records once per place which axis torch chose."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._places: set[Place | None] = set()

    def attach(self, patches: Patches) -> None:
        """Observe the functions; modules call them too."""
        for name in _SOFTMAXES:
            before = partial(self._before, name)
            patches.around(F, name, before, lambda *_: None, skip=self._watch.window.is_resting)

    def _before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (args[1] if len(args) > 1 else kwargs.get("dim")) is not None or not self._watch.window.sampled:
            return
        scores = args[0] if args else kwargs.get("input")
        if not isinstance(scores, Tensor) or len(self._places) >= _MOST_PLACES or not self._watch.is_listening():
            return
        place = self._watch.places.here()
        if place not in self._places:
            self._places.add(place)
            axis = 0 if scores.dim() in (0, 1, 3) else 1
            shape = tuple(scores.shape)
            self._watch.tell(
                AxisGuessed(step=self._watch.window.steps, place=place, function=name, shape=shape, axis=axis)
            )


def _axis(name: str, source: Tensor) -> int | None:
    """Where the classes are, if the loss or the shape says so."""
    if source.dim() == 0:
        return None
    if name in CLASS_LOSSES:
        return class_axis(source)
    return -1 if source.dim() == 2 and source.shape[1] > 1 else None


def _share_left_out(target: Tensor, labels: TensorFact) -> float | None:
    if labels.classes is None or target.numel() == 0:
        return None
    return 1 - labels.classes.total / target.numel()


def _kept(name: str, made_by: str, source: Tensor, target: Tensor, ignored: int | None) -> float | None:
    """The share of the gradient that a softmax or sigmoid before the loss lets through, where that is a mistake."""
    if name == "cross_entropy" and made_by.startswith("SoftmaxBackward"):
        return gradient_kept(source, target, -100 if ignored is None else ignored)
    if name in BINARY_LOSSES and made_by == "SigmoidBackward0":
        return sigmoid_gradient_kept(source, target, again=name.endswith("logits"))
    return None


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


def sigmoid_gradient_kept(probabilities: Tensor, target: Tensor, *, again: bool) -> float | None:
    """The share of the gradient's norm that gets through a sigmoid before binary cross-entropy.

    `again`: the loss applies another one. Else what is lost is that of probabilities of exactly 0 and 1.
    """
    if not is_plain(probabilities) or not is_plain(target) or not may_measure() or probabilities.shape != target.shape:
        return None
    with reading():
        p, wanted = probabilities.detach().double(), target.detach().double()
        right = p - wanted
        slope = p * (1 - p)
        through = (torch.sigmoid(p) - wanted) * slope if again else right * (slope > 0)
        whole = float(right.norm())
        return float(through.norm()) / whole if whole > 0 else None
