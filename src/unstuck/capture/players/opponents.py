"""Observes networks that train against each other: which way each player's loss pushes the answers of one of them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from unstuck.capture.detect.graph import Token
from unstuck.capture.players.head import Head, mark_end
from unstuck.capture.window import Watch
from unstuck.events import OutputPulled, Place

_MOST_CALLS = 8
_MOST_OUTPUTS = 24
_MOST_EVENTS = 240
_LARGEST = 2**20


class _Call(NamedTuple):
    """A network was called where gradients are recorded."""

    end: Token
    """Of the node that it ends in: the graph of the program is not held."""
    model: str
    source: str
    live: bool


class Opponents:
    """Follows the networks of programs with several optimizers."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._outputs: deque[tuple[str, tuple[float, float]]] = deque(maxlen=_MOST_OUTPUTS)
        """What networks returned lately: whose it is, and marks of it."""
        self._calls: list[_Call] = []
        self._pulls: list[tuple[_Call, float | None, Place | None]] = []
        self._events = 0

    def model_ran(self, model: str, given: Tensor, output: Tensor, learning: bool) -> None:
        """A network answered, in a sampled window."""
        if self._events >= _MOST_EVENTS or len(list(self._watch.objects.optimizers())) < 2:
            return
        if given.numel() > _LARGEST or output.numel() > _LARGEST or not (given.is_cpu and output.is_cpu):
            return
        marks = _marks(given)
        source = next((other for other, known in reversed(self._outputs) if known == marks and other != model), "")
        self._outputs.append((model, _marks(output)))
        if output.grad_fn is not None and learning:
            call = _Call(mark_end(output.grad_fn), model, source, given.requires_grad)
            self._calls = [*self._calls[1 - _MOST_CALLS :], call]

    @property
    def ends(self) -> list[Token]:
        """Where networks end in the graphs of this window."""
        return [call.end for call in self._calls]

    def backward(self, head: Head, place: Place | None) -> None:
        """A loss is back-propagated in a sampled window."""
        if not self._calls:
            return
        found = head.pulls(list(head.ends.values()))
        for call in self._calls:
            pull = found.get(head.ends.get(call.end))
            if pull is not None:
                size = float(pull.abs().sum())
                self._pulls.append((call, float(pull.sum()) / size if size > 0 else None, place))

    def window_ended(self, optimizer: Optimizer | None) -> None:
        """A player has stepped."""
        if optimizer is not None and any(call.source for call, _, _ in self._pulls):
            label = self._watch.objects.optimizer(optimizer)
            for call, direction, place in self._pulls:
                self._events += 1
                self._watch.tell(
                    OutputPulled(
                        step=self._watch.window.steps,
                        place=place,
                        optimizer=label,
                        model=call.model,
                        source=call.source,
                        live=call.live,
                        direction=direction,
                    )
                )
        self._calls, self._pulls = [], []


def _marks(tensor: Tensor) -> tuple[float, float]:
    values = tensor.detach().double()
    return float(values.sum()), float(values.square().sum())
