"""Answers that an evaluation gives back to the model as its next input: do they look like the inputs before them?"""

from __future__ import annotations

import torch
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain, may_measure, reading
from unstuck.capture.window import Watch
from unstuck.events import AnswersFedBack, Place

_FEWEST = 8
"""Examples of one call."""
_MOST = 4096
"""Numbers that are looked at in one."""
_MOST_CALLS = 400
_MOST_MODELS = 8
_EXACT = 1e-6
"""The share of the spread by which what is given back may differ from the answer, scaled and shifted."""


class _Moments:
    def __init__(self) -> None:
        self.count = 0
        self.sums: Tensor | None = None

    def add(self, values: Tensor) -> None:
        flat = values.double().reshape(-1)
        sums = torch.stack([flat.sum(), flat.square().sum()])
        self.sums = sums if self.sums is None else self.sums + sums
        self.count += flat.numel()

    def read(self) -> tuple[float, float]:
        """Mean and spread."""
        if self.sums is None:
            return 0.0, 0.0
        mean, square = (self.sums / self.count).tolist()
        return mean, max(0.0, square - mean * mean) ** 0.5


class _Model:
    """What one model was given at the last position of its input."""

    def __init__(self) -> None:
        self.real, self.first = _Moments(), _Moments()
        """Of the inputs that a forecast began with, and of the first answers that were given back after them."""
        self.calls = self.rollouts = 0
        self.given: Tensor | None = None
        self.answer: Tensor | None = None
        self.is_fed_back = False
        self.factor = self.offset = 0.0
        self.place: Place | None = None


class FedBack:
    """Follows forecasts that go on from their own answers. Only the first that is given back counts: later ones may
    be far off because the model is not good."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._models: dict[str, _Model] = {}

    def wants(self, label: str) -> bool:
        """Has the model not been called often enough yet?"""
        model = self._models.get(label)
        known = len(self._models) < _MOST_MODELS if model is None else model.calls < _MOST_CALLS
        return known and may_measure()

    def called(self, label: str, inputs: list[tuple[str, Tensor]], output: Tensor | None, place: Place | None) -> None:
        """A model was called while no gradients were recorded."""
        model = self._models.setdefault(label, _Model())
        model.calls += 1
        with reading():
            given, before = _last(inputs), model.answer
            is_fed_back = False
            if given is not None and before is not None and before.numel() == given.numel():
                line = _line(before.reshape(-1).double(), given.reshape(-1).double())
                is_fed_back = line is not None
                if line is not None and model.given is not None and not model.is_fed_back:
                    model.rollouts += 1
                    model.real.add(model.given)
                    model.first.add(given)
                    model.factor, model.offset = line
                    model.place = model.place or place
            model.is_fed_back = is_fed_back
            model.given = given.clone() if given is not None else None
            usable = output is not None and is_plain(output) and output.is_cpu and output.numel() <= _MOST
            model.answer = output.detach().clone() if usable and output is not None else None

    def finish(self) -> None:
        """The run ended."""
        for label, model in self._models.items():
            with reading():
                (mean, spread), (other_mean, other_spread) = model.real.read(), model.first.read()
            if model.rollouts and spread > 0:
                self._watch.tell(
                    AnswersFedBack(
                        step=self._watch.window.steps,
                        place=model.place,
                        model=label,
                        rollouts=model.rollouts,
                        answers=model.first.count,
                        factor=model.factor,
                        offset=model.offset,
                        spread=other_spread / spread,
                        shift=abs(other_mean - mean) / spread,
                    )
                )


def _last(inputs: list[tuple[str, Tensor]]) -> Tensor | None:
    """The last position of a window [N, T] or a sequence [N, T, F]."""
    tensor = inputs[0][1].detach() if inputs else None
    if (
        tensor is None
        or tensor.dim() not in (2, 3)
        or len(tensor) < _FEWEST
        or not (is_plain(tensor) and tensor.is_cpu)
    ):
        return None
    last = tensor[:, -1]
    return last if tensor.shape[1] > 1 and last.numel() <= _MOST else None


def _line(answer: Tensor, given: Tensor) -> tuple[float, float] | None:
    """By what an answer was multiplied, and what was added, to become the input; None if it came about otherwise."""
    centered, wanted = answer - answer.mean(), given - given.mean()
    square = float(centered.square().sum())
    if not square > 0 or not float(wanted.square().sum()) > 0:
        return None
    factor = float(centered @ wanted) / square
    rest = float((wanted - factor * centered).square().sum()) / float(wanted.square().sum())
    return (factor, float(given.mean() - factor * answer.mean())) if rest <= _EXACT else None
