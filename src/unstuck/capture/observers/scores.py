"""Records what the answers given to training losses are worth, those of torch and those written out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from unstuck.capture.detect.comparisons import LARGEST as LARGEST_ANSWER, Answer, comparison_in
from unstuck.capture.measure.answers import LARGEST, Answers, Guess, right_answers
from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure, reading
from unstuck.capture.preview.predicting import prediction
from unstuck.capture.window import Watch
from unstuck.events import Place, Scored
from unstuck.events.losses import CLASS_LOSSES

_MOST_KINDS = 64
_CLOSE_CALLS = 5
_OFTEN = 10
_Kind = tuple[Place | None, str, tuple[int, ...]]


class Scores:
    """The targets of every loss at every line, over many calls, and the answers to them."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._answers: dict[_Kind, Answers] = {}
        self._window = -1
        """The last window in which a loss of torch was scored."""
        self._answer: Answer | None = None
        self._read = 0

    def score(
        self, name: str, given: dict[str, Any], call: tuple[Tensor, Tensor, Tensor], place: Place | None, closely: bool
    ) -> None:
        """A loss was given these answers and targets, and returned this. On a device only where it is waited for
        anyway."""
        source, target, result = call
        scalars, window = self._watch.scalars, self._watch.window
        self._window, self._answer = window.number, None
        known = is_plain(source) and is_plain(result) and (is_plain(target) or is_whole(target)) and may_measure()
        if not known or not 0 < target.numel() <= LARGEST or not (closely or scalars.is_immediate(target)):
            return
        classes = _classes(name, source)
        key = (place, name, (classes,) if name in CLASS_LOSSES else tuple(target.shape[1:]))
        if key not in self._answers and len(self._answers) >= _MOST_KINDS:
            return
        answers = self._answers.setdefault(key, Answers(name, classes))
        with reading():
            answers.add(given, source, target)
            guess = answers.guess() if closely else Guess()
            cost = answers.cost(source, target, result)
            right = right_answers(name, source, target, int(given.get("ignore_index", -100)))
            share = right[0] / right[1] if right is not None and right[1] else None
            self._watch.tell(
                Scored(
                    step=window.steps,
                    place=place,
                    loss=name,
                    cost=scalars.later(cost) if cost is not None else None,
                    guess=guess.cost,
                    labels=right[1] if right is not None else target.numel(),
                    right=scalars.later(share) if share is not None else None,
                    guess_right=guess.right,
                )
            )

    def answered(self, output: Any) -> None:
        """A model returned this in training."""
        tensor = prediction(output)
        known = tensor is not None and is_plain(tensor) and tensor.grad_fn is not None and may_measure()
        self._answer = Answer(tensor) if known and tensor is not None and 0 < tensor.numel() <= LARGEST_ANSWER else None

    def backward(self, loss: Tensor, place: Place | None) -> None:
        """A backward of a sampled window begins: if no loss of torch was called, read what this one compares."""
        answer, self._answer = self._answer, None
        window = self._watch.window
        if answer is None or self._window == window.number or loss.grad_fn is None or not may_measure():
            return
        if not self._watch.scalars.is_immediate(loss):
            return
        with reading():
            found = comparison_in(loss.grad_fn, answer)
        if found is not None:
            self._read += 1
            closely = self._read <= _CLOSE_CALLS or self._read % _OFTEN == 0
            self.score(found.loss, {}, (found.source, found.target, found.result), place, closely)


def _classes(name: str, source: Tensor) -> int:
    if name in CLASS_LOSSES and source.dim() > 0:
        return source.shape[0 if source.dim() == 1 else 1]
    return source.shape[1] if source.dim() == 2 else 1
