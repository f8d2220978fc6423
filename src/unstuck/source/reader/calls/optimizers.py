"""Optimizers, schedulers and gradient scalers: making them, and their methods such as `step()` and `zero_grad()`."""

from __future__ import annotations

import ast

from unstuck.events import OptimizerSeen, OptimizerStep, ScalerUpdate, SchedulerStep, Unscale, ZeroGrad
from unstuck.source.facts import OptimizerMade, SchedulerMade
from unstuck.source.reader.calls.functions import call_function
from unstuck.source.reader.reader import Call, Reader
from unstuck.source.reader.scope import dotted
from unstuck.source.values import UNKNOWN, Const, Instance, UserFunction, Value


def note_optimizer(reader: Reader, optimizer: Instance, node: ast.Call) -> None:
    """An optimizer was made."""
    parameters = optimizer.args[0] if optimizer.args else optimizer.kwargs.get("params", UNKNOWN)
    place = reader.place(node)
    reader.facts.optimizers.append(OptimizerMade(optimizer, parameters, place, reader.tick()))
    reader.write(OptimizerSeen(optimizer=optimizer.last, kind=optimizer.last, place=place), subject=optimizer)


def note_scheduler(reader: Reader, scheduler: Instance, node: ast.Call) -> None:
    """A learning-rate scheduler was made."""
    optimizer = scheduler.args[0] if scheduler.args else scheduler.kwargs.get("optimizer", UNKNOWN)
    reader.facts.schedulers.append(SchedulerMade(scheduler, optimizer, reader.place(node), node, reader.tick()))


def optimizer_method(reader: Reader, optimizer: Instance, name: str, call: Call) -> Value | None:
    """`optimizer.step()`; None for a method that says nothing about optimizers."""
    label, place = optimizer.label or optimizer.last, reader.place(call.node)
    if name == "zero_grad":
        flag = call.kwargs.get("set_to_none", call.args[0] if call.args else UNKNOWN)
        to_none = not (isinstance(flag, Const) and flag.value is False)
        reader.write(ZeroGrad(optimizer=label, set_to_none=to_none, place=place), subject=optimizer)
    elif name in ("step", "first_step", "second_step"):
        closure = call.args[0] if call.args else call.kwargs.get("closure")
        if isinstance(closure, UserFunction):
            call_function(reader, closure, (), {})
        inside_closure = closure is not None and not isinstance(closure, Const)
        reader.write(OptimizerStep(optimizer=label, inside_closure=inside_closure, place=place), subject=optimizer)
        return optimizer
    elif name == "add_param_group":
        reader.facts.groups_added.append((optimizer, reader.tick()))
    elif name not in ("state_dict", "load_state_dict"):
        return None
    return UNKNOWN


def scheduler_method(reader: Reader, scheduler: Instance, name: str, call: Call) -> Value:
    """`scheduler.step()`."""
    if name == "step":
        reader.write(SchedulerStep(kind=scheduler.last, place=reader.place(call.node)), subject=scheduler)
    return UNKNOWN


def scaler_method(reader: Reader, scaler: Value, name: str, call: Call) -> Value:
    """`scaler.scale(loss)`, `scaler.step(optimizer)`, `scaler.update()`."""
    subject, node = call.first, call.node
    if name == "scale":
        return reader.tensor("scale", (subject,), node, options={"scaler": scaler})
    label = subject.label if isinstance(subject, Instance) else ""
    label = label or (dotted(node.args[0]) if node.args else "")
    place = reader.place(node)
    if name == "unscale_":
        reader.write(Unscale(optimizer=label, place=place), subject=subject).scaler = scaler
    elif name == "step":
        step = OptimizerStep(optimizer=label, through_scaler=True, place=place)
        reader.write(step, subject=subject).scaler = scaler
    elif name == "update":
        reader.write(ScalerUpdate(place=place)).scaler = scaler
    return UNKNOWN
