"""O20 in a crash: a `load_state_dict` that raised, what does not match, and how to make it match."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import Crash
from unstuck.events.torch_errors import STATE_SIZES, TorchError
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rules.convergence.strict_false_load import Load, rule
from unstuck.rules.shared.crashes import count, crash_of, shaped, word

MOST_SHOWN = 3
SIZES = "strict=False skips only missing and unexpected keys: a matching name with another shape raises in any case."
FILTER = (
    "If these layers should be new (another number of classes), leave them out and train them:\n"
    "    own = model.state_dict()\n"
    "    state = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}\n"
    "    print(model.load_state_dict(state, strict=False))\n"
    "Otherwise build the model with the sizes of the checkpoint."
)


def explain(record: Record) -> Iterator[Finding]:
    """The finding for keys or sizes that do not match."""
    crash = crash_of(record, TorchError.STATE_DICT)
    if crash is None:
        return
    model = crash.module_kind or "the model"
    ours, theirs, both = (
        count(crash, name) for name in ("keys of the model", "keys of the checkpoint", "matching keys")
    )
    names = {"keys of the model": ours, "keys of the checkpoint": theirs, "matching keys": both}
    evidence = [Evidence(name, value) for name, value in names.items() if value is not None]
    sizes = [(name, _shape(saved), _shape(own)) for name, saved, own in STATE_SIZES.findall(crash.message)]
    if sizes:
        name, saved, own = sizes[0]
        more = f", and {len(sizes) - 1} more" if len(sizes) > 1 else ""
        message = f"{name} is {saved} in the checkpoint and {own} in {model}{more}."
        variant, cause, fix = Load.SIZES_DIFFER, SIZES, FILTER
        for name, saved, own in sizes[:MOST_SHOWN]:
            evidence.append(Evidence(name, f"{saved} in the checkpoint, {own} in the model"))
    else:
        message = "The keys of the checkpoint do not match those of the model."
        if ours is not None and theirs is not None and both is not None:
            message = f"{both} of the {ours} keys of {model} are in the checkpoint, which has {theirs}."
        variant = Load.KEYS_DIFFER
        cause, fix = _keys(crash)
    yield rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "load_state_dict", crash.place),
        place=crash.place,
        evidence=evidence,
        severity=Severity.ERROR,
        variant=variant,
    )


def _shape(sides: str) -> str:
    return shaped(tuple(int(side) for side in sides.split(",") if side.strip()))


def _keys(crash: Crash) -> tuple[str, str]:
    """Why the keys differ, and the change that makes them match."""
    prefix, missing = word(crash, "prefix in the checkpoint"), word(crash, "prefix in the model")
    if inner := word(crash, "inner dictionary"):
        return (
            f"The file contains more than the weights: they are in its entry {inner!r}.",
            f"Load that entry: `model.load_state_dict(checkpoint[{inner!r}])`.",
        )
    if prefix:
        cause = f"The keys of the checkpoint start with {prefix!r}, and match without it."
        if prefix in ("module.", "_orig_mod."):
            wrapper = "DataParallel or DistributedDataParallel" if prefix == "module." else "torch.compile"
            cause = f"Every key of the checkpoint starts with {prefix!r}: it was saved from a model inside {wrapper}."
        return (
            cause,
            f"Remove it before loading: `state = {{k.removeprefix({prefix!r}): v for k, v in state.items()}}`. "
            "strict=False would only hide that nothing was loaded.",
        )
    if missing:
        fixes = {
            "module.": "Load before you wrap the model, or into `model.module`.",
            "_orig_mod.": "Load before torch.compile, or into `model._orig_mod`.",
        }
        add = f"Add it before loading: `state = {{{missing!r} + k: v for k, v in state.items()}}`."
        return (
            f"The keys of the model start with {missing!r}, and those of the checkpoint do not.",
            fixes.get(missing, add),
        )
    return (
        "Without strict=False every key must be on both sides.",
        "Build the model as it was when it was saved; if parts should be new, pass strict=False and print what it "
        "returns.",
    )
