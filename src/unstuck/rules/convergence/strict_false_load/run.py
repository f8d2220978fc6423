"""O20 in a run: loads with strict=False that left out nearly everything, or missed by a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from unstuck.events import StateLoaded
from unstuck.findings import Evidence, Finding, Severity, Subject
from unstuck.record import Record
from unstuck.rules.convergence.strict_false_load import SILENT, Load, rule

SMALL_SHARE = 0.1
FEWEST_RENAMED = 4
"""A head under another name has fewer tensors than this, and is left out on purpose."""


def find(record: Record) -> Iterator[Finding]:
    """The last load into each model."""
    last = {event.model: event for event in record.of(StateLoaded)}
    for load in last.values():
        if load.strict or load.failed or not load.unexpected_count or not load.missing_count:
            continue
        prefix = _prefix(load)
        if load.matched == 0 or prefix or load.matched < SMALL_SHARE * load.tensors:
            yield _little_loaded(load, prefix)
        elif renamed := _renamed(load):
            yield _little_loaded(load, "", renamed)


def _prefix(load: StateLoaded) -> str:
    """A prefix that one side has and the other lacks, if that explains most of the missing keys."""
    longer, shorter = load.unexpected, set(load.missing)
    if sum(len(name) for name in longer) < sum(len(name) for name in shorter):
        longer, shorter = load.missing, set(load.unexpected)
    for name in longer:
        ends = [name[index + 1 :] for index, letter in enumerate(name) if letter == "."]
        end = next((end for end in ends if end in shorter), "")
        prefix = name.removesuffix(end) if end else ""
        if prefix and 2 * sum(other.removeprefix(prefix) in shorter for other in longer) > len(longer):
            return prefix
    return ""


def _renamed(load: StateLoaded) -> tuple[str, str] | None:
    """The names of one part in the file and in the model, if most of the model is missing because they differ."""
    if 2 * load.matched >= load.tensors or load.missing_count < FEWEST_RENAMED:
        return None
    given, wanted = _first_parts(load.unexpected), _first_parts(load.missing)
    same = len(given) == len(wanted) == 1 and next(iter(given.values())) == next(iter(wanted.values()))
    return (next(iter(given)), next(iter(wanted))) if same else None


def _first_parts(names: Iterable[str]) -> dict[str, set[str]]:
    """The rests of the names, by the part before the first dot."""
    found: dict[str, set[str]] = {}
    for name in names:
        first, _, rest = name.partition(".")
        found.setdefault(first, set()).add(rest)
    return found


def _little_loaded(load: StateLoaded, prefix: str, renamed: tuple[str, str] | None = None) -> Finding:
    nothing = load.matched == 0
    what = "none" if nothing else f"only {load.matched}"
    why, fix = "", "Print what load_state_dict returns, and make the names on both sides match."
    if prefix:
        why = f"; the names differ by the prefix {prefix!r}"
        fix = f"Remove or add the prefix: {{key.removeprefix({prefix!r}): value for key, value in state.items()}}."
    elif renamed:
        given, wanted = renamed
        why = f"; {given!r} in the file is called {wanted!r} in the model"
        fix = f"Rename the keys: {{key.replace('{given}.', '{wanted}.', 1): value for key, value in state.items()}}."
    return rule.finding(
        f"load_state_dict(strict=False) loaded {what} of {load.tensors} tensors of the model{why}.",
        cause=SILENT,
        fix=fix,
        subject=Subject.at("call", "load_state_dict", load.place),
        place=load.place,
        evidence=[
            Evidence("tensors loaded", f"{load.matched} of {load.tensors}"),
            Evidence("missing", ", ".join(load.missing[:3])),
            Evidence("unexpected", ", ".join(load.unexpected[:3])),
        ],
        severity=Severity.ERROR if nothing or prefix else Severity.WARNING,
        variant=Load.LITTLE_LOADED,
    )
