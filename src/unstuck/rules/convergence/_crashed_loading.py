"""A `load_state_dict` that raised: what does not fit, and how to make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unstuck.events import Crash
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.rules.shared.crashes import count, crash_of, shaped, word

if TYPE_CHECKING:
    from unstuck.record import Record
    from unstuck.rule import Rule

MOST_SHOWN = 3
_SIZE = pattern(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[([^\]]*)\]\) from checkpoint, "
    r"the shape in current model is torch\.Size\(\[([^\]]*)\]\)"
)
SIZES = (
    "strict=False passes over missing and unexpected keys only: a tensor of another shape raises either way, and the "
    "names match while the sizes do not."
)
FILTER = (
    "If these layers are to be new (another number of classes), leave them out and train them:\n"
    "    own = model.state_dict()\n"
    "    state = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}\n"
    "    print(model.load_state_dict(state, strict=False))\n"
    "Else build the model with the sizes of the checkpoint."
)


def explain(record: Record, rule: Rule) -> Iterator[Finding]:
    """The finding for keys or sizes that do not fit."""
    crash = crash_of(record, "in loading state_dict for")
    if crash is None:
        return
    sizes = [(name, _shape(ours), _shape(theirs)) for name, theirs, ours in _sizes(crash)]
    if sizes:
        name, ours, theirs = sizes[0]
        more = f", and {len(sizes) - 1} more" if len(sizes) > 1 else ""
        message = f"{name} is {theirs} in the checkpoint and {ours} in {_model(crash)}{more}."
        yield _finding(crash, rule, message, SIZES, FILTER, sizes)
    else:
        yield _finding(crash, rule, _message(crash), _cause(crash), _fix(crash), ())


def _sizes(crash: Crash) -> list[tuple[str, str, str]]:
    return [match.groups() for match in _SIZE.finditer(crash.message)]


def _shape(sides: str) -> str:
    return shaped(tuple(int(side) for side in sides.split(",") if side.strip()))


def _model(crash: Crash) -> str:
    return crash.module_kind or "the model"


def _message(crash: Crash) -> str:
    ours, theirs, both = (
        count(crash, f"{what}") for what in ("keys of the model", "keys of the checkpoint", "matching keys")
    )
    if ours is None or theirs is None or both is None:
        return "The keys of the checkpoint are not those of the model."
    return f"{both} of the {ours} keys of {_model(crash)} are in the checkpoint, which has {theirs}."


def _cause(crash: Crash) -> str:
    prefix, missing = word(crash, "prefix in the checkpoint"), word(crash, "prefix in the model")
    if inner := word(crash, "inner dictionary"):
        return f"The file holds more than the weights: they are its entry {inner!r}."
    if prefix in ("module.", "_orig_mod."):
        wrapper = "DataParallel or DistributedDataParallel" if prefix == "module." else "torch.compile"
        return f"Every key of the checkpoint begins with {prefix!r}: it was saved from a model inside {wrapper}."
    if prefix:
        return f"The keys of the checkpoint begin with {prefix!r}, and fit without it."
    if missing:
        return f"The keys of the model begin with {missing!r}, and those of the checkpoint do not."
    return "Without strict=False every key must be on both sides."


def _fix(crash: Crash) -> str:
    prefix, missing = word(crash, "prefix in the checkpoint"), word(crash, "prefix in the model")
    if inner := word(crash, "inner dictionary"):
        return f"Load that entry: `model.load_state_dict(checkpoint[{inner!r}])`."
    if prefix:
        return (
            f"Take it away before loading: `state = {{k.removeprefix({prefix!r}): v for k, v in state.items()}}`. "
            "strict=False would only hide that nothing was loaded."
        )
    if missing == "module.":
        return "Load before the model is wrapped, or into `model.module`."
    if missing == "_orig_mod.":
        return "Load before torch.compile, or into `model._orig_mod`."
    if missing:
        return f"Put it in front before loading: `state = {{{missing!r} + k: v for k, v in state.items()}}`."
    return (
        "Build the model as it was when it was saved; if parts are meant to be new, pass strict=False and print what "
        "it returns."
    )


def _finding(
    crash: Crash, rule: Rule, message: str, cause: str, fix: str, sizes: list[tuple[str, str, str]] | tuple[()]
) -> Finding:
    names = ("keys of the model", "keys of the checkpoint", "matching keys")
    evidence = [Evidence(name, value) for name in names if (value := count(crash, name)) is not None]
    for name, ours, theirs in sizes[:MOST_SHOWN]:
        evidence.append(Evidence(name, f"{theirs} in the checkpoint, {ours} in the model"))
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject("call", f"load_state_dict at {crash.place}"),
        place=crash.place,
        evidence=evidence,
        severity=Severity.ERROR,
    )
