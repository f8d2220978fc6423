"""What a crash shows: what the failing call was given, in numbers, and what the user's line calls it.

The frames of the traceback are read once and none of them is kept. Values are read on the CPU only, and not at all
after an error of CUDA, when every further call fails.
"""

from __future__ import annotations

import dis
import os
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from unstuck.capture.crash.backward import backward_facts, is_tensor
from unstuck.capture.crash.failing_line import MISSING, FailingLine, attributes_of
from unstuck.capture.crash.loading import loading_facts
from unstuck.capture.measure.tensors import may_measure, reading
from unstuck.capture.places import Places, chain_of, is_ours
from unstuck.events import InputFact
from unstuck.events.torch_errors import NO_METHOD, NOT_A_TENSOR, TorchError

MOST_FRAMES = 200
MOST_FACTS = 24
MOST_READ = 2**28
MOST_SORTED = 2**22
MOST_IDS = 64
_TORCH = os.path.dirname(torch.__file__) + os.sep
_FUNCTIONAL = os.path.join("torch", "nn", "functional.py")
_ID_ARGUMENTS = {"cross_entropy": "target", "nll_loss": "target", "embedding": "input", "embedding_bag": "input"}
_OF_FLOATS = (TorchError.INPUT_NO_PROBABILITY, TorchError.TARGET_NO_PROBABILITY)
"""The errors that are about the values of floats."""
_SIZES = (
    "in_features out_features in_channels out_channels kernel_size groups num_embeddings embedding_dim num_features "
    "normalized_shape input_size hidden_size num_layers batch_first embed_dim training"
).split()


def examine(error: BaseException, places: Places) -> dict[str, Any]:
    """The fields of a `Crash` that only the frames of its traceback can show."""
    entries = [entry for entry in chain_of(error.__traceback__) if not is_ours(entry.tb_frame.f_code)][-MOST_FRAMES:]
    own = [index for index, entry in enumerate(entries) if places.is_users(entry.tb_frame.f_code)]
    if not entries or not own:
        return {}
    if _is_raised(entries[-1]):
        return {"raised": True}
    with reading():
        return _FailingCall(error, entries, own[-1], places).facts()


def _is_raised(entry: TracebackType) -> bool:
    """Is the innermost frame a `raise` statement outside torch?"""
    code = entry.tb_frame.f_code
    return not code.co_filename.startswith(_TORCH) and dis.opname[code.co_code[entry.tb_lasti]] == "RAISE_VARARGS"


class _FailingCall:
    """One traceback, cut in two at the innermost line of the user's: that line, and the frames below it."""

    def __init__(self, error: BaseException, entries: Sequence[TracebackType], own: int, places: Places) -> None:
        self._message = str(error)
        self._entries = entries
        self._places = places
        self._line = FailingLine(entries[own])
        self._below = [entry.tb_frame for entry in entries[own + 1 :]]
        fatal = any(word in f"{type(error).__name__} {error}" for word in ("CUDA", "OutOfMemory", "allocate memory"))
        self._may_read = not fatal and may_measure()
        self._devices: dict[str, str] = {}
        self._given: dict[int, str] = {}
        """Inputs by the identity of the tensor, to find out what the user calls them."""

    def facts(self) -> dict[str, Any]:
        frame = _functional(self._below)
        layer = _layer(self._below)
        function = frame.f_code.co_name if frame is not None else _method(self._below)
        inputs = self._inputs(frame, layer)
        variables = tuple(self._fact(name, value) for name, value in self._line.tensors())
        names = {self._given[id(value)]: name for name, value in self._line.tensors() if id(value) in self._given}
        inputs += self._not_tensor(frame, layer, names)
        second = self._line.argument(1)
        if "target" not in names and second and self._calls_directly(function):
            names["target"] = second
        ids, outside = self._ids(frame)
        more: dict[str, Any] = {}
        if function == "load_state_dict":
            more = loading_facts(self._below)
        elif function in ("backward", "grad"):
            more = backward_facts(self._message, self._users_entries(), self._below, self._places)
        inputs += (*outside, *more.pop("inputs", ()))
        elsewhere = any(device != "cpu" for device in self._devices.values())
        return {
            "function": function,
            "module": self._layer_name(layer) if layer is not None else "",
            "module_kind": type(layer).__name__ if layer is not None else "",
            "inputs": inputs,
            "variables": variables[:MOST_FACTS],
            "names": names,
            "devices": self._devices if elsewhere else {},
            "ids": ids,
            **more,
        }

    def _users_entries(self) -> list[TracebackType]:
        """The user's own frames, innermost first."""
        return [entry for entry in reversed(self._entries) if self._places.is_users(entry.tb_frame.f_code)]

    def _calls_directly(self, function: str) -> bool:
        """Does the user's line itself call the loss, as a function or as a module?"""
        first = self._below[0] if self._below else None
        if first is None or not (function in self._line.text or _is_loss(first.f_locals.get("self"))):
            return False
        return function.endswith(("loss", "entropy", "with_logits"))

    def _inputs(self, frame: FrameType | None, layer: nn.Module | None) -> tuple[InputFact, ...]:
        given: dict[str, InputFact] = {}
        for source in self._calls(frame, layer):
            for name, value in _arguments(source):
                if name not in given and (is_tensor(value) or _is_plain_value(value)):
                    given[name] = self._fact(name, value)
                    self._given.setdefault(id(value), name)
        for name, value in _sizes(layer) if layer is not None else ():
            given.setdefault(name, self._fact(name, value))
        return tuple(given.values())[:MOST_FACTS]

    def _calls(self, frame: FrameType | None, layer: nn.Module | None) -> list[FrameType]:
        """The function of torch that failed, and the forward of the layer."""
        inside = [below for below in self._below if layer is not None and below.f_locals.get("self") is layer]
        forward = next((below for below in inside if below.f_code.co_name == "forward"), None)
        return [call for call in (frame, forward) if call is not None]

    def _not_tensor(
        self, frame: FrameType | None, layer: nn.Module | None, names: dict[str, str]
    ) -> tuple[InputFact, ...]:
        """What was taken for a tensor, by its class, and the tensors in it. Its name is added to the names."""
        owners = (below.f_locals.get("self") for below in self._below)
        first = next((owner for owner in owners if _is_module(owner)), None)
        direct = self._below[:1] == [frame] or (layer is not None and first is layer)
        found = taken_for_tensor(self._message, self._line, self._calls(frame, layer), direct)
        if found is None:
            return ()
        if found.written:
            names[found.argument] = found.written
        parts = [self._fact(found.argument + way, tensor) for way, tensor in tensors_in(found.value)]
        kind, value = type(found.value).__name__, common_kind(found.value) or None
        return (InputFact(found.argument, kind=kind, value=value), *parts)

    def _fact(self, name: str, value: Any) -> InputFact:
        if not is_tensor(value):
            return InputFact(name, value=value if _is_plain_value(value) else str(value))
        if nn.parameter.is_lazy(value):
            return InputFact(name, kind=type(value).__name__)
        self._devices[name] = str(value.device)
        low, high, broken = self._values(value)
        return InputFact(
            name,
            shape=tuple(value.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            low=low,
            high=high,
            broken=broken,
            requires_grad=value.requires_grad,
        )

    def _readable(self, tensor: Tensor) -> bool:
        """May its values be read? Those of floats only where the error is about them."""
        return (
            self._may_read
            and type(tensor) in (Tensor, nn.Parameter)
            and tensor.device.type == "cpu"
            and tensor.layout is torch.strided
            and (not tensor.is_floating_point() or any(kind.is_in(self._message) for kind in _OF_FLOATS))
            and not tensor.is_complex()
            and not tensor.is_quantized
            and 0 < tensor.numel() <= MOST_READ
        )

    def _values(self, tensor: Tensor) -> tuple[float | None, float | None, float | None]:
        """The ends of what is finite, and of floats the share that is not."""
        if not self._readable(tensor):
            return None, None, None
        if not tensor.is_floating_point():
            low, high = torch.aminmax(tensor.long() if tensor.dtype is torch.bool else tensor)
            return float(low), float(high), None
        finite = tensor.detach()[torch.isfinite(tensor)]
        broken = 1 - finite.numel() / tensor.numel()
        return (float(finite.min()), float(finite.max()), broken) if finite.numel() else (None, None, broken)

    def _ids(self, frame: FrameType | None) -> tuple[tuple[int, ...], tuple[InputFact, ...]]:
        """The ids a loss or an embedding was given, each once, and how many of them have no row."""
        if frame is None or frame.f_code.co_name not in _ID_ARGUMENTS:
            return (), ()
        given = frame.f_locals
        ids, rows = given.get(_ID_ARGUMENTS[frame.f_code.co_name]), _rows(given, frame.f_code.co_name)
        if not is_tensor(ids) or not rows or not self._readable(ids):
            return (), ()
        known = (InputFact("rows", value=rows),)
        if ids.numel() > MOST_SORTED:
            return (), known
        wrong = (ids < 0) | (ids >= rows)
        if isinstance(given.get("ignore_index"), int):
            wrong &= ids != given["ignore_index"]
        distinct = torch.unique(ids)
        few = tuple(int(value) for value in distinct.tolist()) if distinct.numel() <= MOST_IDS else ()
        return few, (InputFact("outside", value=int(wrong.sum())), *known)

    def _layer_name(self, layer: nn.Module) -> str:
        """`fc1`, `model[3]`: from what the user's line calls down to the layer."""
        owners = (frame.f_locals.get("self") for frame in self._below)
        first = next((owner for owner in owners if _is_module(owner)), layer)
        called = self._line.called or type(first).__name__
        path = next((name for name, part in nn.Module.named_modules(first) if part is layer), None)
        if path is None:
            return type(layer).__name__
        return called + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split(".") if part)


def _functional(below: Sequence[FrameType]) -> FrameType | None:
    """The call of `torch.nn.functional` that failed: the outermost of the innermost run of its frames."""
    found: FrameType | None = None
    for frame in below:
        if frame.f_code.co_filename.endswith(_FUNCTIONAL):
            found = found or frame
        elif _is_module(frame.f_locals.get("self")):
            found = None
    return found


def _method(below: Sequence[FrameType]) -> str:
    """`backward`, `load_state_dict` or the like, where torch is asked for it by the user's own line."""
    words = [frame.f_code.co_name for frame in below]
    return next((word for word in ("load_state_dict", "backward", "grad", "step") if word in words), "")


def _layer(below: Sequence[FrameType]) -> nn.Module | None:
    """The innermost layer of torch's that was running."""
    for frame in reversed(below):
        candidate = frame.f_locals.get("self")
        if _is_module(candidate):
            return candidate
    return None


def _arguments(frame: FrameType) -> Iterator[tuple[str, Any]]:
    code = frame.f_code
    known = frame.f_locals
    for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        if name != "self" and name in known:
            yield name, known[name]


def _sizes(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """The numbers a layer was built with, and its first weight."""
    for name in _SIZES:
        if name in attributes_of(layer):
            yield name, attributes_of(layer)[name]
    weight = next((p for p in layer._parameters.values() if p is not None), None)
    if weight is not None and not nn.parameter.is_lazy(weight):
        yield "weight", weight


def _rows(given: dict[str, Any], function: str) -> int:
    """How many classes or rows there are."""
    table = given.get("input" if _ID_ARGUMENTS[function] == "target" else "weight")
    if not is_tensor(table) or table.dim() == 0:
        return 0
    return int(table.shape[1] if _ID_ARGUMENTS[function] == "target" and table.dim() > 1 else table.shape[0])


def _is_module(value: Any) -> TypeGuard[nn.Module]:
    return issubclass(type(value), nn.Module)


def _is_loss(value: Any) -> bool:
    return isinstance(value, nn.modules.loss._Loss)


def _is_plain_value(value: Any) -> bool:
    return type(value) in (bool, int, float, str)


MOST_PARTS = 8
_PLAIN = (bool, int, float, str)


class NoTensor(NamedTuple):
    """An argument, or the owner of a method, that is not a tensor."""

    argument: str
    """`input`, `target`; `self` if a method of tensors was asked of it."""
    written: str
    """What the user's line calls it, if that is the same thing."""
    value: Any


def taken_for_tensor(message: str, line: FailingLine, calls: Sequence[FrameType], direct: bool) -> NoTensor | None:
    """What torch, in these calls, or the user's line took for a tensor. `direct`: the line makes the first call."""
    if match := NOT_A_TENSOR.search(message):
        argument, position, kind = match.group(1), int(match.group(2)) - 1, match.group(3)
        return _in_calls(argument, kind, line, calls, direct) or _in_line(argument, position, kind, line)
    match = NO_METHOD.search(message)
    if match is None or not hasattr(Tensor, match.group(2)):
        return None
    kind, method = match.groups()
    if calls:
        found = (_in_calls(name, kind, line, calls, direct) for name in ("input", "target"))
        return next((one for one in found if one is not None), None)
    owner = line.owner_of(method)
    return NoTensor("self", owner[0], owner[1]) if owner is not None and _is_a(owner[1], kind) else None


def _in_calls(argument: str, kind: str, line: FailingLine, calls: Sequence[FrameType], direct: bool) -> NoTensor | None:
    """By the name that torch gives it."""
    for frame in calls:
        value = frame.f_locals.get(argument, MISSING)
        if _is_a(value, kind):
            names = [name for name in frame.f_code.co_varnames if name != "self"]
            written = line.argument(names.index(argument)) if direct else line.name_of(value)
            return NoTensor(argument, written, value)
    return None


def _in_line(argument: str, position: int, kind: str, line: FailingLine) -> NoTensor | None:
    """The user's line calls a function of C, which has no frame."""
    value = line.argument_value(position)
    return NoTensor(argument, line.argument(position), value) if _is_a(value, kind) else None


def _is_a(value: Any, kind: str) -> bool:
    return value is not MISSING and type(value).__name__ == kind.rpartition(".")[2]


def common_kind(thing: Any) -> str:
    """`str` of a list of words, `int` of a tuple of whole numbers, else nothing."""
    kinds = {type(part) for _, part in _parts(thing)} if issubclass(type(thing), tuple | list) else set()
    return next(iter(kinds)).__name__ if len(kinds) == 1 and kinds <= set(_PLAIN) else ""


def tensors_in(thing: Any) -> list[tuple[str, Tensor]]:
    """Its tensors and how to get at them: `[0]`, `['logits']`, `.logits`. Runs no code of the program."""
    found = [(way, part) for way, part in _parts(thing) if issubclass(type(part), Tensor)]
    return found[:MOST_PARTS]


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    kind = type(thing)
    if issubclass(kind, dict):
        yield from ((f"[{key!r}]", part) for key, part in dict.items(thing) if type(key) in _PLAIN)
    elif issubclass(kind, tuple):
        yield from ((f"[{place}]", part) for place, part in enumerate(tuple.__iter__(thing)))
    elif issubclass(kind, list):
        yield from ((f"[{place}]", part) for place, part in enumerate(list.__iter__(thing)))
    else:
        yield from ((f".{name}", part) for name, part in attributes_of(thing).items())
