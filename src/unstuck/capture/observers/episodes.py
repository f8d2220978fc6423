"""Observes environments of reinforcement learning: what an agent earned in each episode.

An environment is an object with `reset` and `step`, whose `step` returns a reward and whether the episode is over:
classes of the program itself, and those of gymnasium or gym. Only what it returns is read; nothing is called, and no
object of the program is kept alive.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.measure.tensors import may_measure
from unstuck.capture.places import is_users_class
from unstuck.capture.players.players import Players
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Observer, Watch
from unstuck.events import EpisodesEnded, Place

_LIBRARIES = ("gymnasium", "gym")
_MOST_LOOKS = 8
"""Classes are looked for when the first optimizer is built and the first model runs, then ever more rarely."""
_MOST_CLASSES = 32
_MOST_OBJECTS = 4096
_MOST_LINES = 16
_PATIENCE = 3
"""So many calls of `step` that return no reward, and the class is not an environment."""
_MOST_AT_ONCE = 100
_MOST_VALUES = 4000
"""Values on record for one line, after which each further one stands for twice as many episodes."""
_LARGEST_ROW = 4096
_GAME_WORDS = {"player", "players", "opponent", "opponents", "turn", "agents"}
"""In the names of an environment's attributes: who plays against itself may learn while its rewards stay the same."""
_WORD = re.compile(r"[a-z]+")


class _Episode:
    """What one environment has given since it was last reset. Of one with a row of rewards, each has its own."""

    def __init__(self, place: Place | None, copies: int) -> None:
        self.place = place
        self.earned = [0.0] * copies
        self.moves = [0] * copies


class _Line:
    """The episodes that were played from one line of the program."""

    def __init__(self) -> None:
        self.each = 1
        self.values = 0
        self.steps: list[int] = []
        self.returns: list[float] = []
        self.pending: list[float] = []


class _Kind:
    """A class with `reset` and `step`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_environment = False
        self.failures = 0
        self.contested = False


class _Call:
    """A call of `step` that has begun, and what environments inside of it returned meanwhile."""

    __slots__ = ("action", "environment", "inside", "kind")

    def __init__(self, environment: Any, kind: _Kind, action: Any) -> None:
        self.environment = environment
        self.kind = kind
        self.action = action
        self.inside: list[tuple[_Call, _Reward]] = []


class _Reward:
    """What `step` returned: one reward, or a row of them."""

    __slots__ = ("over", "rewards", "single")

    def __init__(self, rewards: list[float], over: list[bool], single: bool) -> None:
        self.rewards = rewards
        self.over = over
        self.single = single


class Episodes(Observer):
    """Records the sum of rewards of every episode, by the line of the program that plays it."""

    def __init__(self, watch: Watch, players: Players) -> None:
        self._watch = watch
        self._players = players
        self._patches: Patches | None = None
        self._classes: set[type] = set()
        self._modules: set[str] = set()
        self._looks = self._next_look = 0
        self._running: list[_Call] = []
        self._episodes: dict[int, tuple[Any, _Episode]] = {}
        """By the identity of the environment, with a weak reference to it where there can be one."""
        self._lines: dict[tuple[Place | None, str], tuple[_Line, _Kind]] = {}
        self._look = watch.guard.protect("environments", self._find_environments)

    def attach(self, patches: Patches) -> None:
        """The program has not defined its classes yet."""
        self._patches = patches

    def look(self) -> None:
        """A model runs or an optimizer was built: which environments are there by now?"""
        number = self._watch.window.number
        if number >= self._next_look and self._looks < _MOST_LOOKS:
            self._looks += 1
            self._next_look = 2 * number + (self._looks > 1)
            self._look()

    def finish(self) -> None:
        """The run ended."""
        for (place, _), (line, kind) in self._lines.items():
            self._write(place, kind, line)
        self._episodes.clear()
        self._running.clear()

    # Which classes are environments.

    def _find_environments(self) -> None:
        if self._patches is None:
            return
        for kind in self._candidates():
            if kind not in self._classes and len(self._classes) < _MOST_CLASSES:
                self._classes.add(kind)
                self._observe(kind, self._patches)
        self._patches.settled()

    def _candidates(self) -> Iterator[type]:
        for name in _LIBRARIES:
            library = sys.modules.get(name)
            base, wrapper = getattr(library, "Env", None), getattr(library, "Wrapper", None)
            if isinstance(base, type) and isinstance(wrapper, type):
                # A wrapper of the library's own asks the environment inside of it, and may scale its rewards.
                yield from (kind for kind in _below(base) if not issubclass(kind, wrapper) and not is_users_class(kind))
        for name, module in list(sys.modules.items()):
            if (name != "__main__" and name in self._modules) or not isinstance(module, ModuleType):
                continue
            self._modules.add(name)
            filename = vars(module).get("__file__")
            if name == "__main__" or (isinstance(filename, str) and self._watch.places.is_users_file(filename)):
                for value in list(vars(module).values()):
                    if issubclass(type(value), type) and is_users_class(value):  # a proxy is not asked
                        yield value

    def _observe(self, kind: type, patches: Patches) -> None:
        """Where its own methods are, and those that it inherits from classes of the program."""
        if issubclass(kind, nn.Module | Optimizer) or not (_function(kind, "step") and _function(kind, "reset")):
            return
        known = _Kind(kind.__name__)
        for owner in kind.__mro__:
            if owner is kind or is_users_class(owner):
                self._observe_methods(owner, known, patches)

    def _observe_methods(self, owner: type, kind: _Kind, patches: Patches) -> None:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
            if not args or not self._watch.is_listening():
                return None
            action = args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
            return self._step_begins(args[0], kind, action)

        def end(call: _Call, result: Any, error: BaseException | None) -> None:
            self._step_ends(call, result, error)
            if kind.failures >= _PATIENCE and not kind.is_environment:
                patches.suspend(f"{owner.__name__}.step")
                patches.suspend(f"{owner.__name__}.reset")

        def reset(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
            if args and not self._running and self._watch.is_listening():
                self._reset(args[0], kind)
                return args
            return None

        def was_reset(args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
            if error is None:
                self._players.reset(id(args[0]), result)

        patches.around(owner, "step", begin, end, only_woven=True)
        patches.around(owner, "reset", reset, was_reset, only_woven=True)

    # What they return.

    def _step_begins(self, environment: Any, kind: _Kind, action: Any) -> _Call:
        call = _Call(environment, kind, action)
        self._running.append(call)
        return call

    def _step_ends(self, call: _Call, result: Any, error: BaseException | None) -> None:
        while self._running and self._running.pop() is not call:
            pass  # calls whose end was not seen
        reward = _reward_in(result) if error is None else None
        if reward is None:
            call.kind.failures += error is None
            known = call.inside
        elif reward.single or not call.inside:
            call.kind.is_environment = True
            known = [(call, reward)]
        else:  # a row of environments, each of which was asked
            known = call.inside
        if self._running:
            self._running[-1].inside += known
            return
        if reward is not None and reward.single and known[0][0] is call:
            self._players.moved(id(call.environment), call.action, result, reward.rewards[0], reward.over[0])
        for own, earned in known:
            self._add(own, earned)

    def _add(self, call: _Call, reward: _Reward) -> None:
        episode = self._episode_of(call.environment, len(reward.rewards))
        if episode is None:
            return
        for index, earned in enumerate(reward.rewards):
            episode.earned[index] += earned
            episode.moves[index] += 1
            if reward.over[index]:
                self._ended(call.kind, episode, index)
                if reward.single:
                    self._episodes.pop(id(call.environment), None)

    def _episode_of(self, environment: Any, copies: int) -> _Episode | None:
        key = id(environment)
        known = self._episodes.get(key)
        if known is not None and len(known[1].earned) == copies and (known[0] is None or known[0]() is environment):
            return known[1]
        if len(self._episodes) >= _MOST_OBJECTS:
            return None
        episode = _Episode(self._watch.places.here(), copies)
        try:
            alive = weakref.ref(environment)
        except TypeError:
            alive = None
        self._episodes[key] = (alive, episode)
        return episode

    def _reset(self, environment: Any, kind: _Kind) -> None:
        """What was played without an end, as in a loop of so many moves, has ended now."""
        if not kind.contested and _is_game(environment):
            kind.contested = True
        known = self._episodes.pop(id(environment), None)
        if known is not None and (known[0] is None or known[0]() is environment):
            for index, moves in enumerate(known[1].moves):
                if moves:
                    self._ended(kind, known[1], index)

    def _ended(self, kind: _Kind, episode: _Episode, index: int) -> None:
        key = (episode.place, kind.name)
        earned, episode.earned[index], episode.moves[index] = episode.earned[index], 0.0, 0
        if key not in self._lines and len(self._lines) >= _MOST_LINES:
            return
        line, _ = self._lines.setdefault(key, (_Line(), kind))
        line.pending.append(earned)
        if len(line.pending) < line.each:
            return
        line.returns.append(float(f"{sum(line.pending) / line.each:.6g}"))
        line.steps.append(self._watch.window.steps)
        line.pending.clear()
        if len(line.returns) >= _MOST_AT_ONCE:
            self._write(episode.place, kind, line)

    def _write(self, place: Place | None, kind: _Kind, line: _Line) -> None:
        if not line.returns:
            return
        self._watch.tell(
            EpisodesEnded(
                step=line.steps[-1],
                place=place,
                environment=kind.name,
                steps=tuple(line.steps),
                returns=tuple(line.returns),
                each=line.each,
                contested=kind.contested,
            )
        )
        line.values += len(line.returns)
        line.steps, line.returns = [], []
        if line.values >= _MOST_VALUES:
            line.each, line.values = 2 * line.each, 0


def _below(base: type) -> list[type]:
    """All classes derived from it."""
    found: list[type] = []
    pending = [base]
    while pending:
        below: list[type] = type.__subclasses__(pending.pop())
        for kind in below:
            if kind not in found:
                found.append(kind)
                pending.append(kind)
    return found


def _function(kind: type, name: str) -> FunctionType | None:
    """Its method of this name, as it was written; looked up without calling any code of the program's."""
    found = next((vars(owner)[name] for owner in kind.__mro__ if name in vars(owner)), None)
    return found if isinstance(found, FunctionType) else None


def _is_game(environment: Any) -> bool:
    own = environment.__dict__ if type(environment).__dictoffset__ else {}
    return any(_GAME_WORDS.intersection(_WORD.findall(name)) for name in list(own) if isinstance(name, str))


def _reward_in(result: Any) -> _Reward | None:
    """The reward and the end in what `step` returned: `(observation, reward, done, ...)`, with one or two flags."""
    if type(result) is not tuple or not 3 <= len(result) <= 6:
        return None
    reward, flags = result[1], result[2:4]
    if type(reward) is float and type(flags[0]) is bool:  # nearly always, and thousands of times a second
        return _Reward([reward], [flags[0] or (len(flags) > 1 and _flag(flags[1]) is True)], True)
    single = _number(reward)
    if single is not None:
        over = [flag for flag in map(_flag, flags) if flag is not None]
        return _Reward([single], [any(over)], True) if over and _flag(flags[0]) is not None else None
    rewards = _row(reward)
    rows = [row for row in map(_row, flags) if row is not None and rewards is not None and len(row) == len(rewards)]
    if not rewards or not rows or _row(flags[0]) is None or any(value not in (0, 1) for row in rows for value in row):
        return None
    return _Reward(rewards, [any(each) for each in zip(*rows, strict=True)], False)


def _number(value: Any) -> float | None:
    if type(value) in (float, int):
        return float(value)
    if isinstance(value, Tensor):
        return _read(value)[0] if value.numel() == 1 and value.dtype is not torch.bool and _is_near(value) else None
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        return float(value.item()) if value.dtype.kind in "fiu" else None
    return None


def _flag(value: Any) -> bool | None:
    if type(value) is bool:
        return value
    if isinstance(value, Tensor):
        return bool(_read(value)[0]) if value.numel() == 1 and value.dtype is torch.bool and _is_near(value) else None
    if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1 and value.dtype.kind == "b":
        return bool(value.item())
    return None


def _row(value: Any) -> list[float] | None:
    """The numbers of a list or a one-dimensional array."""
    if isinstance(value, Tensor):
        fits = value.dim() == 1 and 1 < value.numel() <= _LARGEST_ROW and _is_near(value)
        return _read(value) if fits else None
    if type(value).__module__ == "numpy":
        fits = getattr(value, "ndim", 0) == 1 and 1 < value.size <= _LARGEST_ROW and value.dtype.kind in "fiub"
        return [float(one) for one in value.tolist()] if fits else None
    if type(value) in (list, tuple) and 1 < len(value) <= _LARGEST_ROW:
        return [float(one) for one in value] if all(type(one) in (bool, int, float) for one in value) else None
    return None


def _is_near(value: Tensor) -> bool:
    return type(value) is Tensor and value.is_cpu and not value.is_meta and may_measure()


def _read(value: Tensor) -> list[float]:
    return [float(one) for one in value.detach().reshape(-1).tolist()]
