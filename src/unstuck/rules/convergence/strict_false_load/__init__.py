"""O20: weights loaded with strict=False, and the keys that did not match are never checked."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.events import StateLoaded
from unstuck.findings import Finding, Severity, Variant
from unstuck.record import Record
from unstuck.rule import Rule, find_in


class Load(Variant):
    """How loading goes wrong."""

    UNCHECKED = "unchecked", "the result of load_state_dict(strict=False) is never checked"
    LITTLE_LOADED = "little-loaded", "load_state_dict(strict=False) loaded almost nothing"
    KEYS_DIFFER = "keys-differ", "load_state_dict raised because the keys differ"
    SIZES_DIFFER = "sizes-differ", "load_state_dict raised because a tensor has another shape"


rule = Rule(
    code="O20",
    name="strict-false-load",
    title="strict=False, and the keys that did not match are never checked",
    severity=Severity.ADVICE,
    explains=("O19", "R01"),
    needs=(StateLoaded,),
    variants=Load.titles(),
)

SILENT = (
    "With strict=False, keys that do not match are silently skipped, even if none match, as with a `module.` prefix: "
    "the model then trains from random weights."
)

rule.in_source(find_in("unstuck.rules.convergence.strict_false_load.source"))


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """What a crash shows, and loads that left out nearly everything or missed by a prefix."""
    from unstuck.rules.convergence.strict_false_load import crash, run

    yield from crash.explain(record)
    yield from run.find(record)
