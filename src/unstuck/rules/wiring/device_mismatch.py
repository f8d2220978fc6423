"""M17: tensors on different devices meet in one operation."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Crash
from unstuck.events.torch_errors import DEVICE, INPUT_AND_WEIGHT_TYPES, TorchError
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.crashes import crash_of, layer, sentence

rule = Rule(
    code="M17",
    name="device-mismatch",
    title="one operation gets tensors on different devices",
    severity=Severity.ERROR,
)

CAUSE = "An operation runs on one device and reads only tensors on it; nothing is copied automatically."
META = (
    "Tensors on the `meta` device have a shape but no values. Fill a model built there with `to_empty` and "
    "load its weights."
)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """torch names the devices; the crash shows which tensor is on which."""
    crash = crash_of(record, TorchError.SEVERAL_DEVICES)
    if crash is None:
        typed = crash_of(record, TorchError.UNLIKE_WEIGHT)
        ends = INPUT_AND_WEIGHT_TYPES.search(typed.message) if typed is not None else None
        crash = typed if ends is not None and ends.group(1) != ends.group(2) else None
    if crash is not None:
        yield _finding(crash, _message(crash), CAUSE, _fix(crash))
        return
    crash = crash_of(record, TorchError.SAVED_ON_ABSENT_DEVICE)
    if crash is not None and TorchError.NO_GPU.is_in(crash.message):
        message = "The file holds GPU tensors, but torch cannot use a GPU on this machine."
        yield _finding(crash, message, "torch.load puts every tensor back on the device it was saved from.", LOAD)


LOAD = "Load them on the CPU: `torch.load(path, map_location='cpu')`."


def _message(crash: Crash) -> str:
    where: dict[str, list[str]] = {}
    for name, device in crash.devices.items():
        where.setdefault(device, []).append(f"`{crash.names.get(name, name)}`")
    if len(where) < 2:
        found = " and ".join(dict.fromkeys(DEVICE.findall(crash.message)))
        return f"{sentence(_who(crash))} gets tensors on different devices{f': {found}' if found else ''}."
    parts = [f"{', '.join(dict.fromkeys(names))} on {device}" for device, names in where.items()]
    return f"{sentence(_who(crash))} gets {' and '.join(parts)}."


def _who(crash: Crash) -> str:
    if crash.module_kind:
        return layer(crash)
    return crash.function or "this operation"


def _fix(crash: Crash) -> str:
    """Move the input to the weights, or the layer to the inputs."""
    devices = crash.devices
    if "meta" in devices.values() or TorchError.META_DEVICE.is_in(crash.message):
        return META
    weight, given = devices.get("weight"), devices.get("input")
    name = crash.names.get("input", "input")
    if weight is None or given is None or weight == given:
        return "Move all of them with .to(device): the model once, and every batch (inputs and targets) in the loop."
    if weight == "cpu":
        return (
            f"{sentence(layer(crash))} is still on the CPU. Call model.to({given!r}) once the model is "
            "complete. Layers in a plain list or created inside forward() are not moved with it: put them in "
            "an nn.ModuleList."
        )
    return f"Move the input to the weights: `{name} = {name}.to({weight!r})`, and the targets too."


def _finding(crash: Crash, message: str, cause: str, fix: str) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "devices", crash.place),
        place=crash.place,
        evidence=[Evidence(crash.names.get(name, name), device) for name, device in crash.devices.items()],
    )
