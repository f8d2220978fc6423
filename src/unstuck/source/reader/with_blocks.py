"""`with` blocks, and the switches of gradient recording: `no_grad`, `enable_grad`, `set_grad_enabled`."""

from __future__ import annotations

import ast

from unstuck.events import Place
from unstuck.source.reader.assignments import assign
from unstuck.source.reader.branches import is_settled
from unstuck.source.reader.reader import Reader, statement
from unstuck.source.values import UNKNOWN, Choice, Const, Instance, Tensor, Value, find_method


@statement(ast.With, ast.AsyncWith)
def with_block(reader: Reader, node: ast.With | ast.AsyncWith) -> bool:
    """`with torch.no_grad(): ...`."""
    off, unknown = reader.grad_off, reader.grad_unknown
    for item in node.items:
        value = reader.evaluate(item.context_expr)
        if isinstance(value, Instance) and value.cls is not None and find_method(value.cls, "__enter__"):
            reader.hide(item.context_expr, (value,))
        off, unknown = recording_after(reader, value, item.context_expr, off, unknown)
        if item.optional_vars is not None:
            assign(reader, item.optional_vars, value if isinstance(value, Instance | Tensor) else UNKNOWN)
    with reader.recording(off, unknown):
        return reader.execute(node.body)


def recording_after(
    reader: Reader, switch: Value, node: ast.expr, off: Place | None, unknown: bool
) -> tuple[Place | None, bool]:
    """Where gradient recording is switched off inside `with switch:`, and whether that is uncertain."""
    if not isinstance(switch, Instance):
        return off, unknown or "grad" in ast.unparse(node) or isinstance(switch, Choice)
    if switch.last in ("no_grad", "inference_mode"):
        always = not switch.args and not switch.kwargs
        return (reader.place(node), False) if always or _is_set(reader, switch, node, True) else (None, True)
    if switch.last == "enable_grad":
        return None, False
    if switch.last == "set_grad_enabled":
        return (reader.place(node), False) if _is_set(reader, switch, node, False) else (None, True)
    return off, unknown


def _is_set(reader: Reader, switch: Instance, node: ast.expr, wanted: bool) -> bool:
    """Is the switch certainly given this? A flag that is constant now may change later."""
    if not switch.args or not isinstance(node, ast.Call) or not node.args:
        return False
    flag = switch.args[0]
    return isinstance(flag, Const) and bool(flag.value) is wanted and is_settled(reader, node.args[0])
