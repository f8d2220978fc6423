"""Which launcher started this process, if any: torchrun, mpirun, srun and others set variables.

A process taken for a rank by mistake exits with 0 instead of 1 and prints why. A rank that is not recognized ends the
work of all other ranks. So these tests are strict only where no other rank can exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Variables = Mapping[str, str]
SLURM_SPECIAL_STEPS = 0xFFFFFFF0
"""Steps from this number on are SLURM's own: batch scripts, the shells of `salloc`."""


class Rank(NamedTuple):
    """One process of a job."""

    launcher: str
    number: int
    world: int
    """How many processes the job has."""
    here: int | None
    """How many of them run on this machine; None if the launcher does not say."""

    @property
    def is_first(self) -> bool:
        """Is this the rank that prints the full report?"""
        return self.number == 0


class _Launcher(NamedTuple):
    name: str
    rank: str
    world: str
    here: Callable[[Variables], str | None]
    applies: Callable[[Variables], bool] = lambda variables: True


def _named(variable: str) -> Callable[[Variables], str | None]:
    return lambda variables: variables.get(variable)


def _has(*names: str) -> Callable[[Variables], bool]:
    return lambda variables: all(name in variables for name in names)


def _slurm_here(variables: Variables) -> str | None:
    return variables.get("SLURM_STEP_NUM_TASKS") if variables.get("SLURM_STEP_NUM_NODES") == "1" else None


def _is_slurm_task(variables: Variables) -> bool:
    """A task of `srun`, not a command typed into the shell of an allocation."""
    step = _number(variables.get("SLURM_STEP_ID"))
    is_shell = "SLURM_PTY_PORT" in variables and variables.get("SLURM_STEP_NUM_TASKS") == "1"
    return step is not None and step < SLURM_SPECIAL_STEPS and not is_shell


def _is_distributed(variables: Variables) -> bool:
    """The variables of `init_process_group("env://")`, as Kubernetes operators and shell scripts set them.

    With a world size of 1 they are left over in a shell in which distributed code was tried without a launcher.
    """
    return "MASTER_ADDR" in variables and variables.get("WORLD_SIZE") != "1"


# A launcher that starts others is listed after them: srun may start mpirun, and both may start torchrun.
_LAUNCHERS = (
    _Launcher("torchrun", "RANK", "WORLD_SIZE", _named("LOCAL_WORLD_SIZE"), _has("TORCHELASTIC_RUN_ID")),
    _Launcher("deepspeed", "RANK", "WORLD_SIZE", _named("LOCAL_SIZE"), _has("LOCAL_RANK", "LOCAL_SIZE", "CROSS_SIZE")),
    _Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", _named("OMPI_COMM_WORLD_LOCAL_SIZE")),
    _Launcher("mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", _named("MV2_COMM_WORLD_LOCAL_SIZE")),
    _Launcher("mpirun", "PMI_RANK", "PMI_SIZE", _named("MPI_LOCALNRANKS")),
    _Launcher("torch.distributed", "RANK", "WORLD_SIZE", _named("LOCAL_WORLD_SIZE"), _is_distributed),
    _Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", _slurm_here, _is_slurm_task),
)
_ACCELERATE = ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND")
"""Set by every `accelerate launch`; it starts several processes through torchrun, deepspeed or mpirun."""


def rank_among(variables: Variables) -> Rank | None:
    """The rank of a process with these variables; None if no launcher started it."""
    for launcher in _LAUNCHERS:
        number, world = _number(variables.get(launcher.rank)), _number(variables.get(launcher.world))
        if number is not None and world is not None and number < world and launcher.applies(variables):
            return Rank(launcher.name, number, world, _number(launcher.here(variables)))
    return Rank("accelerate launch", 0, 1, 1) if _has(*_ACCELERATE)(variables) else None


def _number(word: str | None) -> int | None:
    return int(word) if word is not None and word.isascii() and word.isdigit() else None
