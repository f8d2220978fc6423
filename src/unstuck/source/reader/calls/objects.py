"""Calls of classes of the user's, and of objects: layers, losses, Sequentials and objects with a `__call__`."""

from __future__ import annotations

from functools import reduce

from unstuck.events import Forward
from unstuck.source.reader import knowledge
from unstuck.source.reader.calls.functions import call_function
from unstuck.source.reader.calls.optimizers import note_optimizer
from unstuck.source.reader.calls.records import namedtuple, set_fields
from unstuck.source.reader.calls.torch_functions import call_loss
from unstuck.source.reader.calls.unknown import hide_if_training
from unstuck.source.reader.project import NAMEDTUPLE
from unstuck.source.reader.reader import Call, Reader, callee
from unstuck.source.values import UNKNOWN, Instance, Symbol, Tensor, UserClass, Value, alternatives, bound_method, join

MODULE_OPERATIONS = {
    "Softmax": "softmax",
    "Softmax2d": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "LogSigmoid": "logsigmoid",
    "Tanh": "tanh",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "LeakyReLU": "leaky_relu",
    "ELU": "elu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Softplus": "softplus",
    "Hardtanh": "hardtanh",
    "Hardsigmoid": "hardsigmoid",
    "Dropout": "dropout",
    "Flatten": "flatten",
    "Identity": "view",
}
"""Modules that do what a function does, under the function's name."""
DEEPEST_SEQUENTIAL = 40
HEADS = ("fc", "classifier", "head", "heads")


@callee(UserClass)
def construct(reader: Reader, cls: UserClass, call: Call) -> Value:
    """`Net(10)`."""
    instance = Instance(cls.node.name, reader.place(call.node), cls, call.args, call.kwargs)
    if knowledge.is_module_class(cls):
        reader.facts.modules.append(instance)
    elif knowledge.is_optimizer(instance):
        note_optimizer(reader, instance, call.node)
    initialise(reader, instance)
    return instance


def initialise(reader: Reader, instance: Instance) -> None:
    """Run the user's `__init__`."""
    assert instance.cls is not None
    method = bound_method(instance.cls, "__init__", instance)
    if method:
        call_function(reader, method, instance.args, instance.kwargs)
    else:
        set_fields(instance, instance.cls)


@callee(Instance)
def call_object(reader: Reader, instance: Instance, call: Call) -> Value:
    """`model(x)`, `criterion(prediction, target)`."""
    if instance.cls is not None:
        return _call_user_object(reader, instance, instance.cls, call)
    loss = knowledge.LOSSES.get(instance.last)
    if loss and instance.kind.startswith("torch.nn."):
        return call_loss(reader, loss, call, instance)
    is_module = knowledge.is_module(instance)
    if is_module:
        _write_forward(reader, instance, call)
    if instance.kind == "functools.partial" and instance.args:
        args, kwargs = (*instance.args[1:], *call.args), {**instance.kwargs, **call.kwargs}
        return reader.call(instance.args[0], Call(call.node, args, kwargs))
    if instance.kind == NAMEDTUPLE:
        return namedtuple(instance, call.args, call.kwargs, reader.place(call.node))
    if instance.last == "Sequential":
        return _call_sequential(reader, instance, call)
    if not is_module:
        return hide_if_training(reader, call)
    reader.facts.called.setdefault(id(instance), []).append(reader.place(call.node))
    operation = MODULE_OPERATIONS.get(instance.last, instance.last)
    output = reader.tensor(operation, call.values, call.node, module=instance)
    for name in HEADS if instance.kind.startswith("torchvision.models.") else ():
        head = instance.attrs.get(name)
        if isinstance(head, Instance) and not head.is_part:
            # A ready-made model whose last layer the user replaced ends in that layer.
            return reader.call(head, Call(call.node, (output,), {}))
    return output


def _call_user_object(reader: Reader, instance: Instance, cls: UserClass, call: Call) -> Value:
    is_module = knowledge.is_module_class(cls)
    method = bound_method(cls, "forward" if is_module else "__call__", instance)
    if method is None:
        if not is_module and UNKNOWN in cls.bases:
            # It may be a module after all, and its forward may do anything.
            reader.hide(call.node, (instance, *call.args))
        sequential = any(isinstance(base, Symbol) and base.last == "Sequential" for base in cls.bases)
        return _call_sequential(reader, instance, call) if sequential and instance.items else UNKNOWN
    if not is_module:
        return call_function(reader, method, call.args, call.kwargs)
    _write_forward(reader, instance, call)
    reader.forward_depth += 1
    try:
        return call_function(reader, method, call.args, call.kwargs)
    finally:
        reader.forward_depth -= 1


def _write_forward(reader: Reader, model: Instance, call: Call) -> None:
    """A module was called; modules called inside another module's forward get no event of their own."""
    if not reader.forward_depth:
        recording, label = reader.grad_off is None, model.label or model.last
        graph = None if reader.grad_unknown else recording
        place = reader.place(call.node)
        event = Forward(model=label, grad_enabled=recording, output_requires_grad=graph, place=place)
        reader.write(event, subject=model)


def _call_sequential(reader: Reader, sequential: Instance, call: Call) -> Value:
    if sequential in reader.sequentials or len(reader.sequentials) >= DEEPEST_SEQUENTIAL:
        return UNKNOWN  # it contains itself, or another one that contains another one ...
    reader.sequentials.append(sequential)
    reader.forward_depth += 1
    try:
        value = call.first
        for item in sequential.items:
            reader.layers_left -= 1
            if reader.layers_left < 0:  # ... or each of them twice
                return UNKNOWN
            value = reduce(join, [_call_layer(reader, layer, value, call) for layer in alternatives(item)])
        return value
    finally:
        reader.forward_depth -= 1
        reader.sequentials.pop()


def _call_layer(reader: Reader, layer: Value, data: Value, call: Call) -> Value:
    """What one layer of a Sequential makes of its input; its place is where the layer was made."""
    value = reader.call(layer, Call(call.node, (data,), {}))
    single = isinstance(layer, Instance) and layer.cls is None and layer.last != "Sequential"
    if single and isinstance(layer, Instance) and isinstance(value, Tensor):
        value.place = layer.place
    return value
