"""M19 in a crash: which tensor has the wrong type, and how to convert it."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Crash, LossCall, Place
from unstuck.events.losses import CLASS_LOSSES
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Finding, Subject, Variant
from unstuck.record import Record
from unstuck.rules.shared.crashes import Explanation, Reading, called, crash_of, evidence_at, given, layer, sentence
from unstuck.rules.wiring.dtype_mismatch import WrongType, rule
from unstuck.rules.wiring.dtype_mismatch.not_a_tensor import evidence_of_parts, no_tensor

HALVES = ("float16", "bfloat16")
METHODS = {"float32": "float", "float64": "double", "float16": "half", "bfloat16": "bfloat16"}
SAME = "The weights and the input of a layer must have the same type; nothing is converted automatically."


def find(record: Record) -> Iterator[Finding]:
    """torch names the types; the crash shows which tensors have them."""
    if record.crash is not None and (said := no_tensor(record.crash)) is not None:
        yield _finding(record.crash, said, WrongType.NOT_A_TENSOR)
        return
    for variant, kinds, explanation in READINGS:
        crash = crash_of(record, *kinds)
        said = explanation(crash) if crash is not None and crash.function not in CLASS_LOSSES else None
        if crash is not None and said is not None:
            yield _finding(crash, said, variant)
            return
    crash = crash_of(record, TorchError.GRADIENT_TYPE)
    if crash is not None and crash.function == "backward":
        found = [(call, said) for call in record.of(LossCall) if (said := _in_backward(call)) is not None]
        yield from (_finding(crash, said, WrongType.TARGET, call.place) for call, said in found[-1:])


def _finding(crash: Crash, said: Explanation, variant: Variant, place: Place | None = None) -> Finding:
    return rule.finding(
        said.message,
        cause=said.cause,
        fix=said.fix,
        subject=Subject("module", crash.module) if crash.module else Subject.at("call", "types", crash.place),
        place=place or crash.place,
        related=(crash.place,),
        evidence=[*evidence_at(crash), *evidence_of_parts(crash)],
        variant=variant,
    )


def _layer_input(crash: Crash) -> Explanation | None:
    """The input and the weights of a layer."""
    given_type, weight = given(crash, "input"), given(crash, "weight")
    if given_type is None or weight is None or given_type.dtype == weight.dtype or not crash.module_kind:
        return None
    name = crash.names.get("input", "x")
    return Explanation(
        f"{sentence(layer(crash))} has {weight.dtype} weights but got {called(crash, 'input', 'an input')} as "
        f"{given_type.dtype}.",
        SAME,
        _converted(name, given_type.dtype, weight.dtype),
    )


def _converted(name: str, dtype: str, wanted: str) -> str:
    """How to convert the input to the type of the weights, by where such an input usually comes from."""
    method = METHODS.get(wanted, f"to(torch.{wanted})").removesuffix("()")
    cast = f"{name}.{method}()" if wanted in METHODS else f"{name}.{method}"
    if dtype == "uint8":
        return f"Images of 0..255 are integers: pass `{cast} / 255`, or scale them in the dataset (ToTensor does)."
    if dtype == "float64" and wanted == "float32":
        return f"numpy computes in float64: pass `{cast}`, ideally in the dataset."
    if wanted in HALVES:
        return (
            "Keep the weights in float32 and run the forward pass under torch.autocast, which converts as "
            f"needed. To train entirely in {wanted}, pass `{cast}`."
        )
    if dtype in HALVES:
        return f"Under torch.autocast this layer would convert its input; without it, pass `{cast}`."
    return f"Pass `{cast}`."


def _operands(crash: Crash) -> Explanation | None:
    """An operation in the user's line between tensors that it names."""
    named = [fact for fact in crash.variables if fact.dtype]
    in_layer = crash.module_kind or (given(crash, "input") is not None and given(crash, "weight") is not None)
    if in_layer or len({fact.dtype for fact in named}) < 2:
        return None
    listed = " and ".join(f"`{fact.name}` is {fact.dtype}" for fact in named)
    return Explanation(
        f"The types do not match: {listed}.",
        "A matrix product needs the same type on both sides; nothing is converted automatically.",
        "Convert one of them with .float(), ideally where it is created.",
    )


def _ids(crash: Crash) -> Explanation | None:
    ids = given(crash, "input")
    if ids is None or not crash.function.startswith("embedding"):
        return None
    return Explanation(
        f"{sentence(layer(crash))} looks up rows by id but got {called(crash, 'input', 'an input')} as {ids.dtype}.",
        "Ids must be integers, int64 or int32.",
        f"Pass `{crash.names.get('input', 'x')}.long()`, or keep the ids as integers from the start.",
    )


def _binary_target(crash: Crash) -> Explanation | None:
    """Binary losses compare with probabilities."""
    target = given(crash, "target")
    if target is None or not crash.function.startswith("binary_cross_entropy") or "float" in target.dtype:
        return None
    return Explanation(
        f"{crash.function} gets {called(crash, 'target', 'the target')} as {target.dtype}.",
        "Its targets are probabilities from 0 to 1, so they must be floats like the prediction.",
        f"Pass `{crash.names.get('target', 'target')}.float()`.",
    )


def _integers(crash: Crash) -> Explanation | None:
    """softmax, mean or similar of integers."""
    named = [fact for fact in crash.variables if fact.dtype.startswith(("int", "uint")) or fact.dtype == "bool"]
    if crash.module_kind or crash.function or len(named) != 1:
        return None
    return Explanation(
        f"`{named[0].name}` is {named[0].dtype}, but this operation needs floats.",
        f"torch says: {crash.message.splitlines()[0].rstrip('.')}.",
        f"Convert it first: `{named[0].name}.float()`.",
    )


def _index(crash: Crash) -> Explanation | None:
    """gather, scatter or `x[ids]` with an index of floats."""
    named = [fact for fact in crash.variables if fact.dtype]
    if not named or "float" not in named[-1].dtype or len(named) > 2:
        return None
    name = named[-1].name
    return Explanation(
        f"`{name}` is used as an index but is {named[-1].dtype}.",
        "An index must be an integer (int64) or a boolean mask.",
        f"Pass `{name}.long()`, or keep it as integers from the start.",
    )


def _in_backward(call: LossCall) -> Explanation | None:
    if call.input is None or call.target is None or call.input.dtype == call.target.dtype:
        return None
    return Explanation(
        f"{call.loss} compares a prediction in {call.input.dtype} with a target in {call.target.dtype}.",
        "The loss gets the wider of the two types, and its gradient no longer matches the prediction.",
        f"Convert the target: `target.{METHODS.get(call.input.dtype, 'float')}()`.",
    )


READINGS: tuple[Reading, ...] = (
    (WrongType.LAYER_INPUT, (TorchError.TYPES,), _layer_input),
    (WrongType.OPERANDS, (TorchError.TYPES,), _operands),
    (WrongType.IDS, (TorchError.IDS_TYPE,), _ids),
    (
        WrongType.BINARY_TARGET,
        (TorchError.NOT_CASTABLE, TorchError.GRADIENT_TYPE, TorchError.NOT_FLOAT),
        _binary_target,
    ),
    (WrongType.INDEX, (TorchError.INDEX_TYPE,), _index),
    (
        WrongType.INTEGERS,
        (TorchError.INTEGERS,),
        _integers,
    ),
)
