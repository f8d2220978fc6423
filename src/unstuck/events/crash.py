"""The exception that ended a run, and what the failing call was given."""

from __future__ import annotations

import msgspec

from unstuck.events.base import Event, InputFact, Place


class Crash(Event, tag="crash", frozen=True):
    """The exception that ended the run; `frames` are the user's, outermost first, and `place` the innermost."""

    kind: str = ""
    message: str = ""
    frames: tuple[Place, ...] = ()
    raised: bool = False
    """By a `raise` of the program or of a library, not by torch or python."""
    function: str = ""
    """The function of torch that failed, if python sees it: `cross_entropy`, `backward`, `load_state_dict`."""
    module: str = ""
    """The layer of torch that failed, as the program would write it: `fc1`, `model[3]`."""
    module_kind: str = ""
    inputs: tuple[InputFact, ...] = ()
    """What that function or layer was given, and the sizes it was built with."""
    variables: tuple[InputFact, ...] = ()
    """The tensors that the failing line names, by these names."""
    names: dict[str, str] = msgspec.field(default_factory=dict)
    """What the failing line calls the inputs: `{"target": "labels"}`."""
    devices: dict[str, str] = msgspec.field(default_factory=dict)
    """Where the inputs and variables lie, if not all on the CPU."""
    ids: tuple[int, ...] = ()
    """The class ids or row numbers that were given, each once, if there are few."""
    suspects: tuple[str, ...] = ()
    """Of a failed backward: the variables and attributes that the matter is about."""
    suspect_places: tuple[Place, ...] = ()
