"""Reading calls: functions of the user's are followed, classes become objects, torch functions become operations."""

from __future__ import annotations

import ast
import functools

from unstuck.events import Forward
from unstuck.source.facts import Called
from unstuck.source.reader import knowledge
from unstuck.source.reader.base import Frame, dotted
from unstuck.source.reader.expressions import find_method
from unstuck.source.reader.library import Library
from unstuck.source.reader.scope import Scope
from unstuck.source.trace import Inlined
from unstuck.source.values import (
    MOST_ITEMS,
    UNKNOWN,
    Choice,
    Const,
    Group,
    Instance,
    Method,
    Symbol,
    Tensor,
    UserClass,
    UserFunction,
    Value,
    alternatives,
    join,
)

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
DEEPEST_CHAIN = 40
HEADS = ("fc", "classifier", "head", "heads")


class Calls(Library):
    """The part of the reader that follows calls."""

    def execute(self, body: list[ast.stmt]) -> bool:
        """Read statements."""
        raise NotImplementedError

    def call(self, node: ast.Call) -> Value:
        """The result of a call, with its arguments read first."""
        discarded, self.statement = self.statement is node, None
        function = self.evaluate(node.func)
        args, kwargs = self._arguments(node)
        called = self._note_call(function, node, args, kwargs, discarded)
        if not isinstance(function, Choice):
            called.result = self.call_value(function, node, args, kwargs)
            return called.result
        result: Value | None = None
        for option in function.options:
            value = self.call_value(option, node, args, kwargs)
            result = value if result is None else join(result, value)
        called.result = result or UNKNOWN
        return called.result

    def _note_call(
        self, function: Value, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value], discarded: bool
    ) -> Called:
        receiver, name = None, ""
        if isinstance(function, Symbol):
            name = function.name
        elif isinstance(function, Method):
            receiver, name = function.receiver, f".{function.name}"
        elif isinstance(function, Instance):
            receiver = function
        called = Called(
            name=name or dotted(node.func),
            node=node,
            source=self.frame.source,
            args=args,
            kwargs=kwargs,
            result=UNKNOWN,
            receiver=receiver,
            loops=tuple(self.loops),
            discarded=discarded,
            recording=self.grad_off is None,
            function=self.frame.function,
            owner=self.frame.owner,
            time=self.tick(),
        )
        self.facts.calls.append(called)
        return called

    def _arguments(self, node: ast.Call) -> tuple[tuple[Value, ...], dict[str, Value]]:
        args: list[Value] = []
        for expression in node.args:
            value = self.evaluate(expression)
            if isinstance(expression, ast.Starred):
                args.extend(value.items[: MOST_ITEMS - len(args)] if isinstance(value, Group) else [UNKNOWN])
            else:
                args.append(value)
        return tuple(args), {item.arg: self.evaluate(item.value) for item in node.keywords if item.arg}

    def call_value(self, value: Value, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        """The result of calling `value`."""
        if isinstance(value, UserFunction):
            return self.call_function(value, args, kwargs)
        if isinstance(value, UserClass):
            return self._construct(value, node, args, kwargs)
        if isinstance(value, Symbol):
            return self._call_symbol(value, node, args, kwargs)
        if isinstance(value, Instance):
            return self._call_instance(value, node, args, kwargs)
        if isinstance(value, Method):
            return self.call_method(value, node, args, kwargs)
        if self.hides(node, args, kwargs):
            self.hide(node, iter((*args, *kwargs.values())))
        return UNKNOWN

    def call_function(self, function: UserFunction, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        """Follow a function of the user's with these arguments."""
        node = function.node
        self.read.add(node)
        own_optimizer = function.owner is not None and knowledge.is_optimizer(function.owner)
        if own_optimizer and getattr(node, "name", "") != "__init__":
            # An optimizer of the user's own may step, clear and back-propagate as it likes.
            self.hide(node, iter((function.owner or UNKNOWN, *args)))
            return UNKNOWN
        if node in self.active or len(self.active) >= self.deepest or self.fuel <= 0:
            if self.active:
                self.hide(node, iter((*args, *kwargs.values())))
            return UNKNOWN
        self.active.append(node)
        name = getattr(node, "name", "<lambda>")
        frame = Frame(Scope(outer=function.scope), name, function.owner, function.defined_in)
        self._bind_parameters(function, frame, args, kwargs)
        try:
            with self.inside(frame), self.collecting(Inlined()), self._decorated(node):
                value = self._body(node, frame)
            if "contextmanager" in map(_decorator_name, getattr(node, "decorator_list", [])):
                # What stands behind its yield happens after the `with` body, not here.
                self.hide(node, iter(args))
            return value
        finally:
            self.active.pop()

    def _body(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, frame: Frame) -> Value:
        if isinstance(node, ast.Lambda):
            return self.evaluate(node.body)
        self.execute(node.body)
        if frame.yielded:
            return Group(frame.yielded, complete=False)
        result: Value | None = None
        for value in frame.returned:
            result = value if result is None else join(result, value)
        return result if result is not None else Const(None)

    def _decorated(self, node: ast.AST):  # type: ignore[no-untyped-def]
        for decorator in getattr(node, "decorator_list", []):
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self.evaluate(target) in (Symbol("torch.no_grad"), Symbol("torch.inference_mode")):
                return self.recording(self.place(decorator))
        return self.recording(self.grad_off, self.grad_unknown)

    def _bind_parameters(
        self, function: UserFunction, frame: Frame, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> None:
        spec, names = function.node.args, frame.scope.names
        parameters = [*spec.posonlyargs, *spec.args]
        static = any(
            isinstance(d, ast.Name) and d.id == "staticmethod" for d in getattr(function.node, "decorator_list", [])
        )
        given = (function.owner, *args) if function.owner is not None and not static else args
        defaults = dict(zip([p.arg for p in parameters][::-1], spec.defaults[::-1], strict=False))
        defaults.update({p.arg: d for p, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None})
        for parameter in (*parameters, *spec.kwonlyargs):
            # Nobody calls a function that is read on its own, so its defaults say nothing.
            default = defaults.get(parameter.arg) if self.trusts_defaults else None
            names[parameter.arg] = Const(default.value) if isinstance(default, ast.Constant) else UNKNOWN
        names.update({parameter.arg: value for parameter, value in zip(parameters, given, strict=False)})
        names.update({name: value for name, value in kwargs.items() if name in names})
        frame.parameters = frozenset(parameter.arg for parameter in (*parameters, *spec.kwonlyargs))
        if spec.vararg:
            names[spec.vararg.arg] = Group(list(given[len(parameters) :]), complete=True)
        if spec.kwarg:
            extra = {name: value for name, value in kwargs.items() if name not in names}
            names[spec.kwarg.arg] = Group(list(extra.values()), complete=False, keys=list(extra))

    def _construct(self, cls: UserClass, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Instance:
        instance = Instance(cls.node.name, self.place(node), cls, args, kwargs)
        if knowledge.is_module_class(cls):
            self.facts.modules.append(instance)
        elif knowledge.is_optimizer(instance):
            self._made_optimizer(instance, node)
        self.initialise(instance)
        return instance

    def initialise(self, instance: Instance) -> None:
        """Run the user's `__init__`."""
        assert instance.cls is not None
        method = find_method(instance.cls, "__init__")
        if method:
            self.call_function(
                UserFunction(method[0], method[1].scope, instance, method[1]), instance.args, instance.kwargs
            )

    def _call_instance(
        self, instance: Instance, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        if instance.cls is not None:
            return self._call_user_object(instance, node, args, kwargs)
        loss = knowledge.LOSSES.get(instance.last)
        if loss and instance.kind.startswith("torch.nn."):
            return self._loss(loss, node, args, kwargs, instance)
        if knowledge.is_module(instance):
            self._forward(instance, node)
        if instance.kind == "functools.partial" and instance.args:
            rest = (*instance.args[1:], *args)
            return self.call_value(instance.args[0], node, rest, {**instance.kwargs, **kwargs})
        if instance.last == "Sequential":
            return self._chain(instance, node, args)
        if knowledge.is_module(instance):
            self.facts.called.setdefault(id(instance), []).append(self.place(node))
            operation = MODULE_OPERATIONS.get(instance.last, instance.last)
            output = self.tensor(operation, (*args, *kwargs.values()), node, module=instance)
            return self._through_new_head(instance, node, output)
        if self.hides(node, args, kwargs):
            self.hide(node, iter((*args, *kwargs.values())))
        return UNKNOWN

    def _forward(self, model: Instance, node: ast.Call) -> None:
        """A module was called; those inside another module's forward are not told one by one."""
        if not self.forward_depth:
            recording, label = self.grad_off is None, model.label or model.last
            graph = None if self.grad_unknown else recording
            event = Forward(model=label, grad_enabled=recording, output_requires_grad=graph, place=self.place(node))
            self.happen(event, subject=model)

    def _through_new_head(self, model: Instance, node: ast.Call, output: Value) -> Value:
        """A ready-made model whose last layer the user replaced ends in that layer."""
        for name in HEADS if model.kind.startswith("torchvision.models.") else ():
            head = model.attrs.get(name)
            if isinstance(head, Instance) and not head.kind.startswith("part of "):
                return self.call_value(head, node, (output,), {})
        return output

    def _chain(self, sequential: Instance, node: ast.Call, args: tuple[Value, ...]) -> Value:
        if sequential in self.chained or len(self.chained) >= DEEPEST_CHAIN:
            return UNKNOWN  # it holds itself, or another one that holds another one ...
        self.chained.append(sequential)
        self.forward_depth += 1
        try:
            value = args[0] if args else UNKNOWN
            for item in sequential.items:
                self.links -= 1
                if self.links < 0:  # ... or each of them twice
                    return UNKNOWN
                value = functools.reduce(join, [self._link(layer, node, value) for layer in alternatives(item)])
            return value
        finally:
            self.forward_depth -= 1
            self.chained.pop()

    def _link(self, layer: Value, node: ast.Call, given: Value) -> Value:
        """What one layer of a Sequential makes of its input; its place is where the layer was made."""
        value = self.call_value(layer, node, (given,), {})
        own = isinstance(layer, Instance) and layer.cls is None and layer.last != "Sequential"
        if own and isinstance(layer, Instance) and isinstance(value, Tensor):
            value.place = layer.place
        return value

    def _call_user_object(
        self, instance: Instance, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        assert instance.cls is not None
        is_module = knowledge.is_module_class(instance.cls)
        method = find_method(instance.cls, "forward" if is_module else "__call__")
        if method is None:
            sequential = any(isinstance(b, Symbol) and b.last == "Sequential" for b in instance.cls.bases)
            if not is_module and UNKNOWN in instance.cls.bases:
                # Perhaps a module after all, and its forward may do anything.
                self.hide(node, iter((instance, *args)))
            return self._chain(instance, node, args) if sequential and instance.items else UNKNOWN
        if not is_module:
            return self.call_function(UserFunction(method[0], method[1].scope, instance, method[1]), args, kwargs)
        self._forward(instance, node)
        self.forward_depth += 1
        try:
            return self.call_function(UserFunction(method[0], method[1].scope, instance, method[1]), args, kwargs)
        finally:
            self.forward_depth -= 1


def _decorator_name(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return dotted(target).rpartition(".")[2]
