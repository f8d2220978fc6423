"""Observes losses with log-probabilities of actions: which of these a backward makes more likely."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain
from unstuck.capture.players.draws import Draws
from unstuck.capture.players.head import Head, LogProbability
from unstuck.capture.players.moves import Move, Moves
from unstuck.capture.players.weights import fit
from unstuck.capture.window import Watch
from unstuck.events import Place, PolicyPulled

FEW = 8
"""Actions of one backward that are written down one by one; of more, the correlation says as much."""
_CLOSE = 3
"""Windows between the loss of an actor and that of its critic."""
_MOST_LOOKS = 80


class _Pull(NamedTuple):
    window: int
    pulls: Tensor
    event: PolicyPulled


class Policies:
    """Follows the backwards of policies and of the values that are learned next to them."""

    def __init__(self, watch: Watch, moves: Moves, draws: Draws) -> None:
        self._watch = watch
        self._moves = moves
        self._draws = draws
        self._pull: _Pull | None = None
        """The last one, which may yet meet its values."""
        self._surprise: tuple[int, Tensor] | None = None
        self._is_seen = False
        """Has a loss held log-probabilities?"""
        self._looks = 0

    def backward(self, head: Head, place: Place | None) -> None:
        """A loss is back-propagated in a sampled window."""
        above = next((one.above for one in head.surprises if is_plain(one.above)), None)
        chosen = [one for one in head.log_probabilities if one.actions is None or one.actions.is_cpu]
        self._is_seen = self._is_seen or bool(head.log_probabilities)
        if above is not None and (self._is_seen or self._moves.states):
            self._surprise = self._watch.window.number, above.double()
        if chosen and self._looks < _MOST_LOOKS and len(chosen) == len(head.log_probabilities):
            self._looks += 1
            self.finish()
            self._pull = self._read(head, chosen, place)
        self._meet()

    def finish(self) -> None:
        """Write down what still waits."""
        if self._pull is not None:
            self._watch.tell(self._pull.event)
            self._pull = None

    def window_began(self) -> None:
        """A pull without values has waited long enough, or values without a pull."""
        now = self._watch.window.number
        if self._pull is not None and now - self._pull.window > _CLOSE:
            self.finish()
        if self._surprise is not None and now - self._surprise[0] > _CLOSE:
            self._surprise = None

    def rest(self) -> None:
        """Losses are not looked at for a while: what comes then is too far away."""
        self._surprise = None

    def _read(self, head: Head, chosen: list[LogProbability], place: Place | None) -> _Pull | None:
        found = head.pulls([*(one.node for one in chosen), *head.entropies])
        if not all(one.node in found for one in chosen):
            return None
        pulls = torch.cat([-one.sign * _by_action(found[one.node], one) for one in chosen]).double()
        if not bool(torch.isfinite(pulls).all()) or pulls.numel() == 0:
            return None
        entropy = [float(found[node].sum()) for node in head.entropies if node in found]
        moves = self._played(len(pulls))
        other = _differing(chosen, moves)
        fitted = fit(pulls, moves) if other == 0 else None
        if fitted is None and other == 0:  # what is taken off may come from a network: then its targets are the returns
            targets = (one.target for one in head.surprises if one.target is not None and len(one.target) == len(moves))
            fits = (fit(target, moves) for target in targets)
            fitted = next((one for one in fits if one is not None and not one.reverse), None)
        played = len(moves) if other is not None else 0
        actions = [one.actions for one in chosen if one.actions is not None]
        if not played and len(actions) == 1:
            played, other = self._draws.compare(actions[0])
        self._moves.forget_recent()
        event = PolicyPulled(
            step=self._watch.window.steps,
            place=place,
            actions=len(pulls),
            mixed=bool((pulls > 0).any() and (pulls < 0).any()),
            played=played,
            other=other or 0,
            weighting=fitted.weighting if fitted else None,
            reverse=fitted is not None and fitted.reverse,
            discount=fitted.discount if fitted else None,
            entropy=-sum(entropy) if entropy else None,
        )
        return _Pull(self._watch.window.number, pulls, event)

    def _played(self, count: int) -> list[Move]:
        """The moves since the last update, if they are as many as the actions of this loss."""
        moves = self._moves
        return moves.recent if len(moves.environments) == 1 and len(moves.recent) == count else []

    def _meet(self) -> None:
        """Both the pull on actions and the surprise of their values are known."""
        if self._pull is None or self._surprise is None:
            return
        (window, pulls, event), (then, above) = self._pull, self._surprise
        if abs(window - then) > _CLOSE or len(pulls) != len(above):
            return
        agreement: float | None = None
        few: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
        if len(pulls) >= FEW:
            agreement = _correlation(pulls, above)
        else:
            few = tuple(pulls.tolist()), tuple(above.tolist())
        self._watch.tell(msgspec.structs.replace(event, agreement=agreement, pulls=few[0], surprises=few[1]))
        self._pull = self._surprise = None


def _by_action(pull: Tensor, one: LogProbability) -> Tensor:
    """One number for each action; of a Gaussian policy, an action is a row."""
    if one.actions is None and pull.dim() > 1:
        pull = pull.reshape(len(pull), -1).mean(1)
    return pull.reshape(-1)


def _differing(chosen: list[LogProbability], moves: list[Move]) -> int | None:
    """How many of the moves are not explained by the actions whose log-probability was taken: the program may rename
    them, but the same way every time. None if that is not known."""
    if not moves or any(one.actions is None for one in chosen):
        return None
    taken = [move.action for move in moves]
    actions = [int(action) for one in chosen for action in (one.actions.tolist() if one.actions is not None else ())]
    if any(action is None for action in taken) or len(actions) != len(taken):
        return None
    counts: dict[int, dict[float, int]] = {}
    for action, move in zip(actions, taken, strict=True):
        if move is not None:
            inner = counts.setdefault(action, {})
            inner[move] = inner.get(move, 0) + 1
    differing = len(taken) - sum(max(inner.values()) for inner in counts.values())
    # As often each, in another order: these are the moves, shuffled.
    shuffled = sorted(Counter(actions).values()) == sorted(Counter(taken).values())
    return None if differing and shuffled else differing


def _correlation(one: Tensor, other: Tensor) -> float | None:
    one, other = one - one.mean(), other - other.mean()
    size = float(one.norm() * other.norm())
    return float(one @ other) / size if size > 0 else None
