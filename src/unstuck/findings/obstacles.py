"""What keeps a script from training that is not its training's fault: nobody answers its questions, there is no GPU."""

from __future__ import annotations

from enum import StrEnum

from unstuck.events import Crash
from unstuck.events.torch_errors import TorchError
from unstuck.lazy import pattern

_STDIN = pattern(r"\bstdin\b|\binput\(")


class Obstacle(StrEnum):
    """Why the script could not go on."""

    NO_INPUT = "no input"
    NO_GPU = "no GPU"


def obstacle_of(crash: Crash, line: str = "") -> Obstacle | None:
    """What stood in the way of a script that ended with this exception, raised at this line of its text."""
    if crash.kind == "EOFError" or (crash.kind in ("ValueError", "IndexError") and _STDIN.search(line)):
        return Obstacle.NO_INPUT
    return Obstacle.NO_GPU if TorchError.NO_GPU.is_in(crash.message) else None


def obstacle_sentence(obstacle: Obstacle, crash: Crash, in_trial: bool = False) -> str:
    """What is wrong, and what to do; `in_trial`: the script cannot be given any input."""
    where = f" at {crash.place}" if crash.place else ""
    if obstacle is Obstacle.NO_GPU:
        return (
            f"The script asks for a GPU{where}, and torch has none to use here. Run it on a machine with one, or let "
            'it choose: device = "cuda" if torch.cuda.is_available() else "cpu".'
        )
    if in_trial:
        return (
            f"The script asks for input{where}, and a run that is repeated cannot be answered. Pass the answer as an "
            "argument of the script, or give it a default."
        )
    return (
        f"The script asks for input{where}, and standard input was empty. Run it in a terminal, or give it the "
        "answers: `< answers.txt`."
    )
