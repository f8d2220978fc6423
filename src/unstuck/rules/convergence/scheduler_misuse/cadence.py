"""How long a learning-rate schedule is, in epochs or in steps, and how often the script steps it."""

from __future__ import annotations

import ast
import re

import msgspec

from unstuck.events import OptimizerStep, Place, SchedulerStep
from unstuck.lazy import pattern
from unstuck.source import Script
from unstuck.source.facts import SchedulerMade
from unstuck.source.trace import Located, Loop, located
from unstuck.source.values import Const, Instance, Value

LENGTHS = {
    "CosineAnnealingLR": ("T_max", 1),
    "PolynomialLR": ("total_iters", 1),
    "OneCycleLR": ("total_steps", 2),
    "LinearLR": ("total_iters", 3),
    "get_linear_schedule_with_warmup": ("num_training_steps", 2),
    "get_cosine_schedule_with_warmup": ("num_training_steps", 2),
    "get_polynomial_decay_schedule_with_warmup": ("num_training_steps", 2),
}
"""The argument that says how often a scheduler should be stepped, and its position."""
EPOCHS = pattern(r"([\w.]+\.)?(n_?|num_?|max_?|total_?)?(train_?)?epochs?(_?num|_?n)?", re.I)

EPOCH = pattern(r"_?(i_?|n_?|curr?(ent)?_)?epoch(_?(i|n|num|idx|index))?", re.I)


class Length(msgspec.Struct, eq=False):
    """`T_max=args.epochs`: the argument, its text, and the text of the value that the name in it was set to."""

    name: str
    text: str
    meaning: str

    @property
    def in_epochs(self) -> bool:
        """Is it the number of epochs? A plain number may be; the loops must confirm that."""
        return EPOCHS.fullmatch(self.text) is not None or (self.text.isdigit() and int(self.text) > 2)

    @property
    def in_steps(self) -> bool:
        """Is it computed from the number of batches?"""
        return "len(" in self.meaning


def length_of(script: Script, made: SchedulerMade) -> Length | None:
    """The length of the schedule, if an argument gives it."""
    kind = made.scheduler.last
    given = {keyword.arg: keyword.value for keyword in made.node.keywords if keyword.arg}
    if kind == "OneCycleLR" and {"epochs", "steps_per_epoch"} <= set(given):
        text = f"{ast.unparse(given['epochs'])} * {ast.unparse(given['steps_per_epoch'])}"
        return Length("epochs and steps_per_epoch", text, _meaning(script, given["steps_per_epoch"]))
    name, position = LENGTHS.get(kind, ("", 0))
    value = given.get(name) or (made.node.args[position] if name and position < len(made.node.args) else None)
    return Length(name, ast.unparse(value), _meaning(script, value)) if value is not None else None


def _meaning(script: Script, value: ast.expr) -> str:
    """The expression, with a plain name replaced by its value if the file sets it once."""
    text = ast.unparse(value)
    if not isinstance(value, ast.Name):
        return text
    found = re.findall(rf"^[ \t]*{re.escape(text)}\s*=\s*(.+)$", script.text, re.M)
    return found[0] if len(found) == 1 else text


def decay_of(made: SchedulerMade) -> tuple[str, float] | None:
    """The text of a decay by a factor, and its average factor per step(), if the numbers are in the source."""
    given, kwargs = made.scheduler.args, made.scheduler.kwargs
    if made.scheduler.last == "ExponentialLR":
        every, gamma = 1.0, _number(given[1] if len(given) > 1 else kwargs.get("gamma"))
        text = f"ExponentialLR(gamma={gamma})"
    elif made.scheduler.last == "StepLR":
        every = _number(given[1] if len(given) > 1 else kwargs.get("step_size"))
        gamma = _number(given[2] if len(given) > 2 else kwargs.get("gamma", Const(0.1)))
        text = f"StepLR(step_size={every:g}, gamma={gamma})"
    else:
        return None
    return (text, gamma ** (1 / every)) if every >= 1 and gamma > 0 else None


def _number(value: Value | None) -> float:
    """A number in the source; 0 if it is not one."""
    number = value.value if isinstance(value, Const) else None
    return number if isinstance(number, int | float) else 0.0


class Cadence(msgspec.Struct, eq=False):
    """Where a scheduler is stepped and where its optimizer is."""

    scheduler: list[Located]
    optimizer: list[Located]

    def per_step_inside(self, epochs: str) -> Loop | None:
        """The loop over epochs, if the scheduler is stepped in every iteration of a loop inside it."""
        for item in self.scheduler:
            outer = [loop for loop in item.loops[:-1] if _runs_over(loop, epochs)]
            varying = any(branch.varies for branch, _ in item.branches)
            if not outer or varying or _runs_over(item.loops[-1], epochs):
                return None
        return outer[0] if self.scheduler else None

    def per_batch_in_epochs(self) -> Loop | None:
        """The loop over epochs, if the scheduler is stepped in a loop inside it together with the optimizer."""
        optimizer_loops = {item.loops for item in self.optimizer}
        for item in self.scheduler:
            outer = [loop for loop in item.loops[:-1] if _is_over_epochs(loop)]
            if not outer or _is_over_epochs(item.loops[-1]) or item.branches or item.loops not in optimizer_loops:
                return None
        return outer[0] if self.scheduler else None

    def once_in(self, length: str) -> bool:
        """Is the scheduler stepped in a loop of exactly that many iterations?"""
        return any(_runs_over(loop, length) for item in self.scheduler for loop in item.loops[-1:])

    @property
    def per_epoch(self) -> bool:
        """Is the optimizer always stepped in a loop inside the one that steps the scheduler?"""
        return bool(self.scheduler and self.optimizer) and all(
            step.loops[: len(item.loops)] == item.loops and len(step.loops) > len(item.loops) > 0
            for item in self.scheduler
            for step in self.optimizer
        )


def _runs_over(loop: Loop, epochs: str) -> bool:
    """Is it `for ... in range(epochs)`?"""
    header = ast.unparse(loop.node.iter) if isinstance(loop.node, ast.For) else ""
    if epochs.isdigit():
        return re.search(rf"range\((0, )?{epochs}\)", header) is not None
    return re.search(rf"range\(.*(?<![\w.]){re.escape(epochs)}(?!\w)", header) is not None


def _is_over_epochs(loop: Loop) -> bool:
    """Is it `for epoch in ...`?"""
    return isinstance(loop.node, ast.For) and EPOCH.fullmatch(ast.unparse(loop.node.target)) is not None


def cadence_of(script: Script, made: SchedulerMade) -> Cadence | None:
    """Where the scheduler and its optimizer are stepped; None if other code may step them too."""
    if id(made.scheduler) in script.facts.escaped:
        return None
    scheduler: list[Located] = []
    optimizer: list[Located] = []
    unknown: set[Place | None] = set()
    for item in located(script.facts.trace):
        event, subject = item.item.event, item.item.subject
        if isinstance(event, SchedulerStep):
            if not isinstance(subject, Instance):
                unknown.add(event.place)
            elif subject is made.scheduler:
                scheduler.append(item)
        elif isinstance(event, OptimizerStep) and isinstance(subject, Instance) and subject is made.optimizer:
            optimizer.append(item)
    # A method that is also read on its own, with nothing known, shows the same line again.
    return Cadence(scheduler, optimizer) if unknown <= {item.item.event.place for item in scheduler} else None
