"""What the information of an environment says about an end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unstuck.capture.players.moves import Moves, mark_of


def was_final(*rest: Any) -> bool:
    moves = Moves()
    moves.reset(1, np.zeros(2))
    moves.moved(1, 0, (np.ones(2), 1.0, *rest), 1.0, True)
    return moves.recent[0].final


@pytest.mark.parametrize("flag", [True, np.bool_(True)])
def test_a_limit_of_time_is_no_end(flag: Any) -> None:
    assert not was_final(True, {"TimeLimit.truncated": flag})


@pytest.mark.parametrize("value", [False, np.bool_(False), np.zeros(3), np.ones(3), None, "no"])
def test_what_is_no_flag_says_nothing(value: Any) -> None:
    assert was_final(True, {"truncated": value})


@pytest.mark.parametrize(
    ("rest", "tells"),
    [
        ((True,), False),
        ((True, {}), False),
        ((True, {"TimeLimit.truncated": False}), True),
        ((True, False), True),
        ((True, False, {}), True),
        ((True, {}, "more"), False),
    ],
)
def test_one_flag_does_not_tell_an_end_from_a_limit(rest: tuple[Any, ...], tells: bool) -> None:
    moves = Moves()
    moves.moved(1, 0, (np.ones(2), 1.0, *rest), 1.0, True)
    assert moves.tells_limits is tells


def test_two_flags_without_information() -> None:
    assert was_final(True, False)
    assert not was_final(False, True)


def test_walls_keep_some_agents_where_they_are_but_never_a_whole_batch() -> None:
    moves, cells = Moves(), np.eye(4, dtype=np.float32)
    for number in range(80):
        cell = number // 2 % 4
        moves.reset(1, cells[cell])
        moves.moved(1, 0, (cells[cell if number % 2 else (cell + 1) % 4], 0.0, False), 0.0, False)
    states = [mark_of(cell) or 0 for cell in cells]
    assert moves.may_all_stay(states)
    assert not moves.may_all_stay(states * 16)
    assert not moves.may_all_stay([mark_of(np.ones(4)) or 0])
