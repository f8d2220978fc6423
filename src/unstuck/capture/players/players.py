"""Observes agents and opponents: shares out what happens among those who compare it."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from unstuck.capture.measure.tensors import is_plain, may_measure, reading
from unstuck.capture.objects import Model
from unstuck.capture.players.bootstraps import Bootstraps
from unstuck.capture.players.codes import Codes
from unstuck.capture.players.draws import Draws
from unstuck.capture.players.head import Head
from unstuck.capture.players.moves import Moves
from unstuck.capture.players.opponents import Opponents
from unstuck.capture.players.partners import Partners
from unstuck.capture.players.policies import Policies
from unstuck.capture.players.rows import Rows
from unstuck.capture.players.spreads import Spreads
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Ended, Observer, Watch
from unstuck.events import Place

_SECONDS = 1.5
"""Of our own time, in all; most runs need a tenth of it."""
_MOST_MOVES = 200_000


class Players(Observer):
    """Environments, policies, values and opponents of one program."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._moves = Moves()
        self._draws = Draws(watch)
        self._policies = Policies(watch, self._moves, self._draws)
        self._bootstraps = Bootstraps(watch, self._moves)
        self._opponents = Opponents(watch)
        self._codes = Codes(watch)
        self._spreads = Spreads(watch)
        self._partners = Partners(watch)
        self._rows = Rows(watch)
        self._patches: Patches | None = None
        self._moved = 0
        self._was_sampled = True
        self._spent = 0.0
        protect = watch.guard.protect
        self._note_model = protect("agents and opponents", self._model_ran)
        self._note_backward = protect("agents and opponents", self._backward)
        self._note_move = protect("agents and opponents", self._move)
        self._note_pairs = protect("agents and opponents", self._partners.matched)
        self._note_pick = protect("rows of data", self._rows.picked)
        self._note_inputs = protect("rows of data", self._rows.model_ran)
        self._note_targets = protect("rows of data", self._rows.compared)
        self._note_reset = protect("agents and opponents", self._moves.reset)

    def attach(self, patches: Patches) -> None:
        """Observe the losses that only partners have."""
        self._partners.attach(patches)
        self._draws.attach(patches)
        self._patches = patches
        patches.around_indexing(self._picked)

    def matched(self, scores: Tensor, partners: Tensor, place: Place | None) -> None:
        """A cross-entropy was computed in a sampled window."""
        if scores.requires_grad and self._may_look():
            self._note_pairs(scores, partners, place)

    def compared(self, target: Tensor) -> None:
        """A loss of torch was computed in a sampled window."""
        if self._patches is not None and torch.is_grad_enabled() and self._may_look():
            with reading():
                self._note_targets(target)

    def _picked(self, tensor: Tensor, index: Any, result: Tensor) -> None:
        if self._watch.is_listening() and may_measure():
            began = perf_counter()
            with reading():
                self._note_pick(tensor, index, result)
            self._spent += perf_counter() - began
            if self._spent > _SECONDS:
                self._leave_rows()

    def _leave_rows(self) -> None:
        """What rows are picked has been seen often enough."""
        if self._patches is not None:
            self._patches.leave_indexing()
            self._patches = None
            self._rows.finish()

    def model_ran(self, model: Model, arguments: Any, output: Any) -> None:
        """A model was called in a sampled window."""
        args, _ = arguments
        if self._patches is not None and torch.is_grad_enabled() and self._may_look():
            with reading():
                self._note_inputs(arguments)
        given = args[0] if args else None
        if isinstance(given, Tensor):
            self._draws.model_ran(given, torch.is_grad_enabled())
        answer = output if isinstance(output, Tensor) else None
        if isinstance(output, tuple) and output and all(isinstance(one, Tensor) for one in output):
            answer = output[-1]
        if isinstance(given, Tensor) and answer is not None and is_plain(given) and self._may_look():
            self._note_model(model, given, answer)

    def moved(self, environment: int, action: Any, result: tuple[Any, ...], reward: float, over: bool) -> None:
        """An environment was given an action."""
        if self._moved < _MOST_MOVES:
            self._moved += 1
            self._note_move(environment, action, result, reward, over)

    def reset(self, environment: int, result: Any) -> None:
        """It began another episode."""
        if self._moved < _MOST_MOVES:
            self._note_reset(environment, result)

    def backward(self, loss: Tensor, place: Place | None) -> None:
        """A loss is back-propagated in a sampled window."""
        if loss.grad_fn is not None and loss.is_cpu and loss.numel() == 1 and self._may_look():
            self._note_backward(loss, place)

    def window_ended(self, ended: Ended) -> None:
        """A player has stepped."""
        if ended.recorded:
            self._opponents.window_ended(ended.optimizer)

    def sampling_changed(self, sampled: bool) -> None:
        """Losses are not looked at for a while, or again: then moves belong to updates that were not seen."""
        now = self._watch.window.sampled  # an evaluation may change what is recorded in a window that is not
        if now is not self._was_sampled:
            self._was_sampled = now
            self._leave_rows()
            self._draws.rest()
            self._moves.forget_recent()
            self._policies.rest()

    def window_began(self, ended: Ended) -> None:
        """What follows belongs to another update."""
        if ended.recorded:
            self._rows.window_began()
            self._draws.window_began()
            self._bootstraps.window_began()
            self._policies.window_began()
        if not self._watch.window.sampled:
            self._moves.forget_recent()

    def finish(self) -> None:
        """The run ended."""
        with reading():
            self._policies.finish()
            self._bootstraps.finish()
            self._leave_rows()

    def _may_look(self) -> bool:
        return self._spent < _SECONDS and may_measure()

    def _model_ran(self, model: Model, given: Tensor, answer: Tensor) -> None:
        began = perf_counter()
        learning = torch.is_grad_enabled()
        with reading():
            self._bootstraps.model_ran(given, answer, learning)
            if is_plain(answer):
                self._opponents.model_ran(model.label, given, answer, learning)
        self._spent += perf_counter() - began

    def _backward(self, loss: Tensor, place: Place | None) -> None:
        began = perf_counter()
        with reading():
            head = Head(loss.grad_fn, self._opponents.ends)
            if head.is_whole:
                self._opponents.backward(head, place)
                if self._opponents.ends:
                    head = Head(loss.grad_fn)
                if self._patches is not None:
                    self._rows.backward(head, place)
                self._bootstraps.backward(head, place)
                self._policies.backward(head, place)
                self._codes.backward(loss.grad_fn, head, place)
                if not self._moves.states:
                    self._spreads.backward(loss.grad_fn, place)
        self._spent += perf_counter() - began

    def _move(self, environment: int, action: Any, result: tuple[Any, ...], reward: float, over: bool) -> None:
        began = perf_counter()
        with reading():
            self._moves.moved(environment, action, result, reward, over)
        self._spent += (perf_counter() - began) / 10
