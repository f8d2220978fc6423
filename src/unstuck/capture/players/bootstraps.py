"""Observes targets that are computed from a reward and the value of the next state, as in Q-learning."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from unstuck.capture.detect.graph import Node, operation, saved
from unstuck.capture.measure.tensors import is_plain
from unstuck.capture.players.head import Head, Surprise
from unstuck.capture.players.moves import Move, Moves, marks_of_rows
from unstuck.capture.window import Watch
from unstuck.events import Bootstrapped, Place

_MOST_CALLS = 6
_LARGEST_BATCH = 4096
_LARGEST = 2**18
_MOST_ROWS = 3000
_FEWEST_ROWS = 24
_MOST_ANSWERS = 512
_KNOWN = 0.8
"""The share of a batch that must be recognized."""
_EXACT = 1e-3
"""What a fit may leave of the spread of targets, as a standard deviation."""
_COUNTS = 0.05
"""A factor of the next value below this is none."""
_FIRST_REPORT = 256


class _Call(NamedTuple):
    """A network was called: marks of its inputs, and its answers."""

    marks: list[int]
    answers: Tensor
    learning: bool


class _Row(NamedTuple):
    target: float
    reward: float
    final: bool
    following: tuple[float, float]
    """Two readings of the value of the next state: the highest, and that of the action another network prefers."""


class Bootstraps:
    """Recognizes states in what networks are given, and compares targets with what the environment returned."""

    def __init__(self, watch: Watch, moves: Moves) -> None:
        self._watch = watch
        self._moves = moves
        self._calls: list[_Call] = []
        self._rows: list[_Row] = []
        self._place: Place | None = None
        self._unmoved_rows: tuple[list[_Row], list[_Row]] = [], []
        """Of targets that seem to be computed from their own states: with the rewards of the moves that led there, and
        of those made there."""
        self._best = self._unmoved = self._recognized = 0
        self._taken: dict[float, dict[float, int]] = {}
        """By the action whose value was trained: which actions the environment had been given, and how often."""
        self._next_report = _FIRST_REPORT

    def model_ran(self, given: Tensor, output: Tensor, learning: bool) -> None:
        """A network answered, in a sampled window."""
        if not self._moves.states or not given.is_cpu or given.dim() < 1 or given.numel() > _LARGEST:
            return
        if len(given) > _LARGEST_BATCH or output.dim() == 0 or not is_plain(output) or not output.is_cpu:
            return
        rows = given if given.dim() > 1 else given[None]
        answers = output.detach()
        answers = answers.reshape(len(rows), -1) if answers.numel() % len(rows) == 0 else answers[:0]
        marks = marks_of_rows(rows)
        if len(answers) == len(rows) and answers.shape[1] <= _MOST_ANSWERS:
            self._calls = [*self._calls[1 - _MOST_CALLS :], _Call(marks, answers.clone(), learning)]

    def backward(self, head: Head, place: Place | None) -> None:
        """A loss is back-propagated in a sampled window."""
        if not self._calls or not self._moves.between:
            return
        surprise = next((one for one in head.surprises if is_plain(one.above) and one.above.is_cpu), None)
        if surprise is None or len(self._rows) >= _MOST_ROWS:
            return
        calls = [call for call in self._calls if len(call.marks) == len(surprise.above)]
        states = [call for call in calls if call.learning and self._is_known(call.marks)]
        if states:
            self._compare(states[-1], calls, surprise, place)

    def window_began(self) -> None:
        """What follows belongs to another update."""
        self._calls.clear()

    def finish(self) -> None:
        """The run ended."""
        if len(self._rows) >= _FEWEST_ROWS or self._unmoved:
            self._tell()

    def _tell(self) -> None:
        going, ended = self._discounts()
        actions = sum(sum(taken.values()) for taken in self._taken.values())
        self._watch.tell(
            Bootstrapped(
                step=self._watch.window.steps,
                place=self._place,
                rows=self._recognized,
                ended=0 if self._moves.end_by_time else sum(row.final for row in self._rows),
                tells_limits=self._moves.tells_limits,
                discount=going,
                discount_at_end=ended,
                actions=actions,
                # The program may rename actions, but the same way every time.
                other_actions=actions - sum(max(taken.values()) for taken in self._taken.values()),
                best=self._best,
                unmoved=self._unmoved if self._moves.reused or any(map(_counts_the_next, self._unmoved_rows)) else 0,
                reused=self._moves.reused,
            )
        )

    def _is_known(self, marks: list[int]) -> bool:
        return sum(mark in self._moves.states for mark in marks) >= _KNOWN * len(marks)

    def _compare(self, states: _Call, calls: list[_Call], surprise: Surprise, place: Place | None) -> None:
        others = [call for call in calls if call is not states]
        best = max(others, key=lambda call: self._followed(states, call), default=None)
        if best is None:
            return
        self._place = place
        picked = surprise.chosen
        # A policy is asked about the same states again, to compare it with what it was.
        same = picked is not None and all(call.marks == states.marks for call in others)
        stays = same and not self._moves.may_all_stay(states.marks)
        if self._followed(states, best) < _KNOWN * len(states.marks) or (stays and self._moves.reused):
            if stays:
                self._unmoved += len(states.marks)
                self._add_unmoved(states, others, surprise)
            return
        again = [call for call in others if call.marks == best.marks and call.answers.shape == best.answers.shape]
        targets = _targets(states, surprise)
        chosen = _chosen_actions(picked)
        self._best += len(states.marks) if picked is not None and operation(picked) == "Max" else 0
        for number, pair in enumerate(zip(states.marks, best.marks, strict=True)):
            moves = self._moves.between.get(pair)
            if not moves:
                continue
            self._recognized += 1
            if chosen is not None and len(chosen) == len(states.marks):
                self._count(chosen[number], moves)
            self._add(self._rows, number, moves, targets, again)
        if self._recognized >= self._next_report:
            self._next_report *= 4
            self._tell()

    def _count(self, chosen: float, moves: list[Move]) -> None:
        if len(moves) == 1 and moves[0].action is not None:
            taken = self._taken.setdefault(chosen, {})
            taken[moves[0].action] = taken.get(moves[0].action, 0) + 1

    def _add_unmoved(self, states: _Call, others: list[_Call], surprise: Surprise) -> None:
        """Such targets may as well be rewards alone, as those of a bandit: the fit tells."""
        again = [call for call in others if call.answers.shape == others[-1].answers.shape]
        targets, chosen = _targets(states, surprise), _chosen_actions(surprise.chosen)
        into, out_of = self._unmoved_rows
        for number, mark in enumerate(states.marks if len(into) + len(out_of) < _MOST_ROWS else ()):
            self._add(into, number, self._moves.into.get(mark, []), targets, again)
            made = self._moves.out_of.get(mark, [])
            same = [move for move in made if chosen is not None and move.action == chosen[number]]
            self._add(out_of, number, same or made, targets, again)

    def _add(self, rows: list[_Row], number: int, moves: list[Move], targets: Tensor, again: list[_Call]) -> None:
        if len({(move.reward, move.final) for move in moves}) != 1:
            return
        answers = again[-1].answers[number]
        preferred = int(again[0].answers[number].argmax())
        following = float(answers.max()), float(answers[preferred])
        rows.append(_Row(float(targets[number]), moves[0].reward, moves[0].final, following))

    def _followed(self, states: _Call, call: _Call) -> int:
        """How many of its inputs are states that the environment gave right after these."""
        pairs = zip(states.marks, call.marks, strict=True)
        return sum(pair in self._moves.between for pair in pairs)

    def _discounts(self) -> tuple[float | None, float | None]:
        """What the value of the next state counts in targets, where episodes go on and where they have ended."""
        for reading in (0, 1):
            going = _slope([row for row in self._rows if not row.final], reading)
            if going is None:
                continue
            scale, slope = going
            ended = [row for row in self._rows if row.final]
            return slope, _slope_given(ended, reading, scale)
        return None, None


def _targets(states: _Call, surprise: Surprise) -> Tensor:
    return surprise.target if surprise.target is not None else surprise.above + _values(states, surprise.chosen)


def _values(states: _Call, picked: Node | None) -> Tensor:
    """What a network had answered, where a loss written by hand keeps only the difference."""
    index = saved(picked, "index") if picked is not None and operation(picked) == "Gather" else None
    if index is not None and index.numel() == len(states.answers):
        return states.answers.gather(1, index.detach().reshape(-1, 1)).reshape(-1)
    return states.answers[:, 0] if states.answers.shape[1] == 1 else torch.full((len(states.answers),), torch.nan)


def _chosen_actions(picked: Node | None) -> list[float] | None:
    if picked is None or operation(picked) != "Gather":
        return None
    index = saved(picked, "index")
    return None if index is None else [float(action) for action in index.detach().reshape(-1).tolist()]


def _counts_the_next(rows: list[_Row]) -> bool:
    """Do rewards and the other values give the targets exactly, and rewards alone not?"""
    going = [row for row in rows if not row.final]
    alone = [row._replace(following=(1.0, 1.0)) for row in going]
    if _slope(alone, 0, constant=True) is not None:
        return False
    fits = (_slope(going, reading) for reading in (0, 1))
    return any(fit is not None and fit[1] > _COUNTS for fit in fits)


def _slope(rows: list[_Row], reading: int, constant: bool = False) -> tuple[float, float] | None:
    """The factors of the reward and of the next value that give the targets exactly; None if none do."""
    if len(rows) < _FEWEST_ROWS:
        return None
    targets = torch.tensor([row.target for row in rows], dtype=torch.float64)
    parts = torch.tensor([[row.reward, row.following[reading]] for row in rows], dtype=torch.float64)
    if not bool(torch.isfinite(targets).all()) or (float(parts[:, 1].std()) == 0 and not constant):
        return None
    solution = torch.linalg.lstsq(parts, targets[:, None], driver="gelsd").solution.reshape(-1)
    left = float((parts @ solution - targets).square().mean().sqrt())
    if left > _EXACT * max(float(targets.std()), 1e-9):
        return None
    return float(solution[0]), float(solution[1])


def _slope_given(rows: list[_Row], reading: int, scale: float) -> float | None:
    """The factor of the next value alone, that of the reward being known."""
    if len(rows) < 3:
        return None
    rest = torch.tensor([row.target - scale * row.reward for row in rows], dtype=torch.float64)
    values = torch.tensor([row.following[reading] for row in rows], dtype=torch.float64)
    size = float(values.square().sum())
    if size == 0:
        return None
    slope = float(rest @ values) / size
    left = float((rest - slope * values).square().mean().sqrt())
    largest = max(float(values.abs().max()), float(rest.abs().max()))
    return slope if left <= 20 * _EXACT * largest else None
