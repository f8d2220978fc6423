"""Calls into libraries: builtins, NumPy, torch, and others by the names of their functions and classes."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from unstuck.source.reader import knowledge
from unstuck.source.reader.calls.records import NAMESPACES, namespace
from unstuck.source.reader.calls.torch_functions import call_torch, make
from unstuck.source.reader.calls.unknown import hide_if_training
from unstuck.source.reader.everyday import is_observer
from unstuck.source.reader.iteration import each
from unstuck.source.reader.project import NAMEDTUPLE
from unstuck.source.reader.reader import Call, Reader, callee
from unstuck.source.reader.scope import dotted
from unstuck.source.values import (
    UNKNOWN,
    Const,
    Group,
    Instance,
    Parameters,
    Symbol,
    Tensor,
    Value,
    alternatives,
    may_be_tensor,
)

APEX: dict[str, Callable[[Value], Value]] = {"scale_loss": lambda loss: loss, "master_params": Parameters}
"""`with amp.scale_loss(loss, optimizer) as scaled:` and `amp.master_params(optimizer)`."""
PASSES_THROUGH = frozenset({"tqdm", "trange", "track", "islice", "cycle"})
WRAPPERS = frozenset(
    "DataParallel DistributedDataParallel DDP compile FullyShardedDataParallel FSDP convert_sync_batchnorm".split()
)


@callee(Symbol)
def call_symbol(reader: Reader, symbol: Symbol, call: Call) -> Value:
    """`torch.exp(x)`, `zip(a, b)`, `np.mean(x)`."""
    name, last = symbol.name, symbol.last
    if name.startswith("builtins."):
        return _call_builtin(reader, last, call)
    first = call.args[0] if call.args else next(iter(call.kwargs.values()), UNKNOWN)
    if last in WRAPPERS and all(isinstance(option, Instance) for option in alternatives(first)):
        return first
    if name.startswith("torch."):
        return call_torch(reader, symbol, call)
    if last in NAMESPACES:
        return namespace(name, call.args, call.kwargs, reader.place(call.node))
    makes = last in knowledge.OPTIMIZERS or last[:1].isupper() or knowledge.is_schedule_function(last)
    if makes or name.startswith("torchvision.models."):
        return make(reader, symbol, call)
    if name in ("functools.partial", NAMEDTUPLE):
        return Instance(name, reader.place(call.node), args=call.args, kwargs=call.kwargs)
    if name.startswith("itertools.chain"):
        return Group(list(call.args))
    if last in PASSES_THROUGH:
        return first
    if name.startswith("numpy."):
        # NumPy knows no gradients: what it makes of a tensor has lost its history.
        tensors = tuple(filter(may_be_tensor, call.args))
        cut = "" if last in knowledge.NUMPY_ASKS_THE_TENSOR else f"numpy.{last}()"
        return reader.tensor(last, tensors, call.node, cut, args=call.args) if tensors else UNKNOWN
    if name.startswith("apex.amp.") and last in APEX:
        return APEX[last](first)
    if name.startswith("einops.") and last in ("rearrange", "repeat", "reduce") and may_be_tensor(first):
        return reader.tensor(last, (first,), call.node, args=call.args[1:])
    return UNKNOWN if is_observer(name) else hide_if_training(reader, call, last)


def _call_builtin(reader: Reader, name: str, call: Call) -> Value:
    args, first = call.args, call.first
    if name in ("float", "int", "bool") and isinstance(first, Tensor):
        return reader.tensor(name, (first,), call.node, f"{name}()")
    if name == "sum" and isinstance(first, Group):
        return reader.tensor("sum", tuple(first.items), call.node)
    if name in ("list", "tuple", "iter", "reversed", "sorted", "next") and isinstance(first, Parameters | Group):
        return first
    if name == "filter" and len(args) == 2 and isinstance(args[1], Parameters):
        only_trainable = "requires_grad" in ast.unparse(call.node)
        return Parameters(args[1].owner, only_trainable, not only_trainable)
    if name == "enumerate":
        return Group([Group([UNKNOWN, each(first)])], complete=False) if args else UNKNOWN
    if name == "zip":
        return Group([Group(list(map(each, args)))], complete=False)
    if name == "float" and isinstance(first, Const):
        return Const(math.inf) if first.value in ("inf", "Inf", "infinity") else first
    if name == "dict":
        whole = not call.args
        return Group(list(call.values), whole, keys=list(call.kwargs) if whole else None)
    if name == "getattr":
        return _named_attribute(reader, call)
    if name == "setattr" and isinstance(first, Instance):
        reader.facts.escaped.add(id(first))
    return UNKNOWN if name in knowledge.HARMLESS_CALLS else hide_if_training(reader, call)


def _named_attribute(reader: Reader, call: Call) -> Value:
    """`getattr(optimizer, "step")`, or `getattr(torch.optim, name)`."""
    if call.first == Symbol("torch.optim"):
        return Symbol("torch.optim.Optimizer")
    name = call.args[1] if len(call.args) == 2 else UNKNOWN
    owner = call.node.args[0] if call.node.args else None
    if owner is None or not dotted(owner) or not isinstance(name, Const) or not isinstance(name.value, str):
        return UNKNOWN
    return reader.evaluate(ast.copy_location(ast.Attribute(owner, name.value, ast.Load()), call.node))
