"""Moves of windows in which the watch rested are not those of the next update."""

from __future__ import annotations

from unstuck.capture.guard import Guard
from unstuck.capture.places import Places
from unstuck.capture.players.players import Players
from unstuck.capture.window import Watch
from unstuck.events import Event


def test_moves_of_resting_windows_are_forgotten() -> None:
    told: list[Event] = []
    notes: list[str] = []
    watch = Watch(told.append, Guard(notes.append), Places())
    players = Players(watch)

    def move() -> int:
        players.moved(1, 0, ([0.0, 1.0], 1.0, False, {}), 1.0, False)
        return len(players._moves.recent)

    players.sampling_changed(True)  # other gauges are read, that is all
    assert [move(), move()] == [1, 2]
    players.sampling_changed(True)
    assert move() == 3
    watch.window.sampled = False
    players.sampling_changed(False)
    assert [move(), move()] == [1, 2]
    players.sampling_changed(True)  # an evaluation
    assert move() == 3
    watch.window.sampled = True
    players.sampling_changed(True)
    assert move() == 1
