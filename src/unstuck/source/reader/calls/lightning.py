"""Lightning's manual optimization: `self.optimizers()` gives what `configure_optimizers()` made."""

from __future__ import annotations

from unstuck.source.reader import knowledge
from unstuck.source.reader.calls.functions import call_function
from unstuck.source.reader.reader import Reader
from unstuck.source.values import UNKNOWN, Group, Instance, Value, alternatives, bound_method

MADE = "optimizers()"
"""The attribute under which a module keeps what it made; no name of the user's has parentheses."""


def lightning_optimizers(reader: Reader, module: Instance) -> Value:
    """The optimizer of a LightningModule, or the list of them when there are several."""
    if MADE not in module.attrs:
        method = bound_method(module.cls, "configure_optimizers", module) if module.cls is not None else None
        module.attrs[MADE] = UNKNOWN
        if method is not None:
            # Lightning has called it before the first batch.
            outer, reader.block = reader.block, []
            module.attrs[MADE] = _optimizers_in(call_function(reader, method, (), {}))
            reader.block = outer
    return module.attrs[MADE]


def _optimizers_in(returned: Value) -> Value:
    """Of an optimizer, a list, a pair of lists, or dicts with an "optimizer": each has its own form."""
    if isinstance(returned, Group):
        if returned.keys is not None:
            named = dict(zip(returned.keys, returned.items, strict=False))
            return named.get("optimizer", UNKNOWN)
        first = returned.items[0] if returned.items else UNKNOWN
        if isinstance(first, Group) and first.keys is None and len(returned.items) == 2:
            return _optimizers_in(first)
        found = [_optimizers_in(item) for item in returned.items]
        return found[0] if len(found) == 1 else Group(found, returned.complete)
    known = all(knowledge.is_optimizer(option) for option in alternatives(returned))
    return returned if known else UNKNOWN
