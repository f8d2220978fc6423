"""Calls of functions and classes of torch: operations, losses, clipping, layers and optimizers."""

from __future__ import annotations

from unstuck.events import Backward, Clip, LossCall, ZeroGrad
from unstuck.events.losses import CLASS_LOSSES
from unstuck.source.reader import knowledge
from unstuck.source.reader.calls.optimizers import note_optimizer, note_scheduler
from unstuck.source.reader.reader import Call, Reader
from unstuck.source.values import UNKNOWN, Const, Group, Instance, Parameters, Symbol, Value, adopt, may_be_tensor

GRADIENT_SWITCHES = frozenset({"no_grad", "inference_mode", "enable_grad", "set_grad_enabled"})
OTHER_MODULES = tuple(f"torch.{name}" for name in ("utils.", "distributed", "cuda.", "backends", "autograd.", "optim."))
"""Functions of these compute nothing."""
NO_LIMIT = frozenset({Symbol("math.inf"), Symbol("torch.inf"), Symbol("numpy.inf")})


def call_torch(reader: Reader, symbol: Symbol, call: Call) -> Value:
    """`torch.exp(x)`, `torch.nn.Linear(3, 4)`."""
    name, last, node = symbol.name, symbol.last, call.node
    first = call.argument(0, "input")
    if last in GRADIENT_SWITCHES:
        return Instance(name, reader.place(node), args=call.args, kwargs=call.kwargs)
    if last.startswith("clip_grad_") and "nn.utils" in name:
        _clip(reader, last, call)
        return UNKNOWN
    if last == "_foreach_zero_":
        reader.write(ZeroGrad(place=reader.place(node)))
        return UNKNOWN
    if name == "torch.autograd.backward":
        reader.write(Backward(place=reader.place(node)), first)
        return UNKNOWN
    if name == "torch.autograd.grad":
        return _derivative(reader, call)
    if name.startswith("torch.nn.functional.") and last in knowledge.LOSS_FUNCTIONS:
        return call_loss(reader, last, call)
    wants_gradient = call.kwargs.get("requires_grad", Const(False)) != Const(False)
    if last in knowledge.REBUILDERS:
        inputs = tuple(call.first.items) if isinstance(call.first, Group) else (call.first,)
        has_history = any(map(may_be_tensor, inputs))
        result = reader.tensor("rebuilt", inputs, node, f"torch.{last}()" if has_history else "")
        result.leaf = wants_gradient and not has_history
        return result
    if last[:1].isupper() or (name.startswith("torch.optim.") and "swa_utils" not in name):
        return make(reader, symbol, call)
    if name.startswith(OTHER_MODULES):
        return UNKNOWN
    if last in ("save", "load", "manual_seed", "device", "no_grad"):
        return UNKNOWN
    inputs = tuple(first.items) if isinstance(first, Group) else call.values
    cut = knowledge.CUTS.get(last, "")
    result = reader.tensor(last, inputs, node, cut, args=call.args[1:], options=call.kwargs)
    result.leaf = wants_gradient
    return result


def _derivative(reader: Reader, call: Call) -> Value:
    """`torch.autograd.grad(outputs, inputs)`: what it returns is constant unless `create_graph=True`."""
    outputs = call.argument(0, "outputs")
    kept = call.argument(4, "create_graph", Const(False))
    inputs = tuple(outputs.items) if isinstance(outputs, Group) else (outputs,)
    if not isinstance(kept, Const) or "**" in call.kwargs:
        return UNKNOWN
    cut = "" if kept.value else "torch.autograd.grad() without create_graph=True"
    return reader.tensor("autograd_grad", inputs, call.node, cut)


def _clip(reader: Reader, name: str, call: Call) -> None:
    parameters = call.argument(0, "parameters")
    limit = call.argument(1, "max_norm", call.kwargs.get("clip_value", UNKNOWN))
    number = limit.value if isinstance(limit, Const) else None
    if limit in NO_LIMIT or (isinstance(number, int | float) and number >= knowledge.LARGEST_LIMIT):
        return
    owner = parameters.owner if isinstance(parameters, Parameters) else None
    target = (owner.label or owner.last) if isinstance(owner, Instance) else None
    kind = "value" if "value" in name else "norm"
    reader.write(Clip(kind=kind, target=target, place=reader.place(call.node)), subject=parameters)


def call_loss(reader: Reader, loss: str, call: Call, module: Instance | None = None) -> Value:
    """A loss function of torch; `module` is the nn.CrossEntropyLoss or the like that was called."""
    prediction, target = call.argument(0, "input"), call.argument(1, "target")
    records = None if reader.grad_unknown else reader.grad_off is None
    event = LossCall(loss=loss, output_requires_grad=records, place=reader.place(call.node))
    happened = reader.write(event, prediction, target)
    happened.options = {**(module.kwargs if module is not None else {}), **call.kwargs}
    inputs = (prediction,) if loss in CLASS_LOSSES else (prediction, target)
    happened.result = reader.tensor(
        loss, inputs, call.node, module=module, args=call.args[1:], options=happened.options
    )
    return happened.result


def make(reader: Reader, symbol: Symbol, call: Call) -> Value:
    """An object of a library's class."""
    instance = Instance(symbol.name, reader.place(call.node), args=call.args, kwargs=call.kwargs)
    if knowledge.is_optimizer(instance):
        note_optimizer(reader, instance, call.node)
    elif knowledge.is_scheduler(instance):
        note_scheduler(reader, instance, call.node)
    elif symbol.name.startswith("torchvision.models."):
        instance.fresh = not call.kwargs.get("pretrained") and not call.kwargs.get("weights")
    elif instance.last in knowledge.CONTAINERS:
        instance.items = _children(call.args)
        for child in instance.items:
            adopt(instance, child)
    elif instance.last == "Variable" and call.args:
        return call.args[0]
    if reader.forward_depth and knowledge.has_weights(instance) and instance.cls is None:
        reader.facts.made_in_forward.append((instance, reader.place(call.node)))
    return instance


def _children(args: tuple[Value, ...]) -> list[Value]:
    """Children given to a container, also as a list or an OrderedDict of pairs."""
    if len(args) != 1:
        return list(args)
    first = args[0]
    if isinstance(first, Instance) and first.last == "OrderedDict":
        first = first.args[0] if first.args else Group([])
    if not isinstance(first, Group):
        return [first]
    return [item.items[1] if isinstance(item, Group) and len(item.items) == 2 else item for item in first.items]
