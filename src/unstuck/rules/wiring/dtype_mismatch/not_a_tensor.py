"""A crash because something is not a tensor: a tuple or dict returned by a model, None, a list or an array."""

from __future__ import annotations

from unstuck.events import Crash, InputFact
from unstuck.events.torch_errors import TorchError
from unstuck.findings import Evidence
from unstuck.rules.shared.crashes import Explanation, count, given, in_words, layer, sentence, shaped

SEVERAL = "A model may return several values, but a loss, a layer or an operation of torch takes one tensor."
NO_RETURN = "A function without `return` gives None, even a forward() that computes everything."
NOT_CONVERTED = "torch works on tensors and does not convert lists, arrays or numbers."


def no_tensor(crash: Crash) -> Explanation | None:
    """The explanation, if it is known what was used as a tensor."""
    fact = _non_tensor(crash)
    said = _cause_and_fix(crash, fact) if fact is not None and _is_clear(crash, fact) else None
    if fact is None or said is None:
        return None
    written = crash.names.get(fact.name)
    what = f"`{written}`" if written else f"the {fact.name} of {_receiver(crash)}"
    return Explanation(f"{sentence(what)} is {_in_words(crash, fact)}, where {_receiver(crash)} needs a tensor.", *said)


def _is_clear(crash: Crash, fact: InputFact) -> bool:
    """Many objects have a `shape` or a `mean`: did the program expect a tensor?"""
    is_no_loss = fact.kind == "NoneType" and TorchError.NO_BACKWARD_METHOD.is_in(crash.message)
    asked = fact.name != "self" or _parts(crash, fact) or is_no_loss
    return bool(asked) and not crash.raised


def evidence_of_parts(crash: Crash) -> list[Evidence]:
    """The tensors inside it, as the user would write them."""
    fact = _non_tensor(crash)
    parts = _parts(crash, fact) if fact is not None else []
    return [Evidence(_written(crash, part), in_words(part)) for part in parts]


def _non_tensor(crash: Crash) -> InputFact | None:
    return next((fact for fact in crash.inputs if fact.kind and fact.name in ("input", "target", "self")), None)


def _parts(crash: Crash, fact: InputFact) -> list[InputFact]:
    return [part for part in crash.inputs if part.name.startswith((f"{fact.name}[", f"{fact.name}."))]


def _written(crash: Crash, part: InputFact) -> str:
    """`out[0]`."""
    whole = next(name for name in ("input", "target", "self") if part.name.startswith(name))
    return crash.names.get(whole, whole) + part.name.removeprefix(whole)


def _receiver(crash: Crash) -> str:
    """What received it."""
    if crash.function or crash.module_kind:
        return crash.function or layer(crash)
    function, _, rest = crash.message.partition("()")
    return f"{function}()" if rest else "this line"


def _in_words(crash: Crash, fact: InputFact) -> str:
    if fact.kind == "NoneType":
        return "None"
    if fact.value:
        return f"a {fact.kind} of {fact.value}"
    parts = len(_parts(crash, fact))
    article = "an" if fact.kind[0] in "aeiouAEIOU" or fact.kind == "ndarray" else "a"
    return f"{article} {fact.kind}" + (f" that holds {parts} tensor{'s' * (parts > 1)}" if parts else "")


def _cause_and_fix(crash: Crash, fact: InputFact) -> tuple[str, str] | None:
    """Why it fails, and what to change."""
    written, parts = crash.names.get(fact.name, fact.name), _parts(crash, fact)
    if fact.kind == "NoneType":
        return (
            NO_RETURN,
            f"Add the missing `return` to whatever computes {f'`{written}`' if fact.name in crash.names else 'it'}.",
        )
    if fact.kind == "ndarray":
        return NOT_CONVERTED, f"Pass `torch.from_numpy({written})`, ideally in the dataset."
    if fact.value == "str":
        return (
            NOT_CONVERTED,
            "Map the words to numbers from 0 and pass these: `torch.tensor([ids[word] for word in ...])`.",
        )
    if fact.value:
        return NOT_CONVERTED, f"Turn it into a tensor: `torch.tensor({written})`, ideally in the dataset."
    if fact.kind == "list" and len(parts) > 1 and len({part.shape for part in parts}) == 1:
        return NOT_CONVERTED, f"If you need all of it, use `torch.stack({written})`; otherwise pass `{written}[0]`."
    if fact.kind in ("int", "float") and fact.name == "target" and given(crash, "input") is not None:
        scores = crash.names.get("input", "prediction")
        return (
            NOT_CONVERTED,
            f"Compare with a tensor in the shape of the prediction: `torch.full_like({scores}, {written})`.",
        )
    return (SEVERAL, _choice(crash, fact, parts)) if parts else None


def _choice(crash: Crash, fact: InputFact, parts: list[InputFact]) -> str:
    """Which of the parts to pass, if only one fits."""
    fitting = [part for part in parts if _fits(crash, part)]
    if len(fitting) != 1:
        return f"Pass the part you need: {' or '.join(f'`{_written(crash, part)}`' for part in parts)}."
    part = fitting[0]
    size = shaped(part.shape) if part.shape else "one number"
    way = (
        f"`{_written(crash, part)}`"
        if fact.name in crash.names
        else f"only `{part.name.removeprefix(fact.name)}` of it"
    )
    return f"Pass {way}{f', the only part that fits: {size}' if len(parts) > 1 else ''}."


def _fits(crash: Crash, part: InputFact) -> bool:
    """Does this part fit?"""
    shape, target, wanted = part.shape or (), given(crash, "target"), count(crash, "in_features")
    if TorchError.NO_BACKWARD_METHOD.is_in(crash.message):
        return not shape
    if wanted is not None:
        return bool(shape) and shape[-1] == wanted
    if target is not None and target.shape:
        return bool(shape) and shape[0] == target.shape[0] and "float" in part.dtype
    return True
