"""Reading calls: functions of the user's are followed, classes become objects, torch functions become operations."""

from __future__ import annotations

import ast
import math

from unstuck.events import Backward, Clip, Forward, LossCall, OptimizerSeen, ZeroGrad
from unstuck.source import knowledge
from unstuck.source.base import Frame, can_train, dotted
from unstuck.source.expressions import find_method
from unstuck.source.facts import OptimizerMade
from unstuck.source.methods import Methods
from unstuck.source.scope import Scope
from unstuck.source.trace import Inlined
from unstuck.source.values import (
    UNKNOWN,
    Choice,
    Const,
    Group,
    Instance,
    Method,
    Parameters,
    Symbol,
    Tensor,
    UserClass,
    UserFunction,
    Value,
    adopt,
    alternatives,
    join,
)

MODULE_OPERATIONS = {
    "Softmax": "softmax",
    "Softmax2d": "softmax",
    "LogSoftmax": "log_softmax",
    "Flatten": "flatten",
    "Identity": "view",
}
MODES = frozenset({"no_grad", "inference_mode", "enable_grad", "set_grad_enabled"})
HEADS = ("fc", "classifier", "head", "heads")
PASSES_THROUGH = frozenset({"tqdm", "trange", "track", "islice", "cycle"})
NO_LIMIT = frozenset({Symbol("math.inf"), Symbol("torch.inf"), Symbol("numpy.inf")})
LARGEST_LIMIT = 1e6
"""Clipping at more than this is a way to measure the norm."""
WRAPPERS = frozenset({"DataParallel", "DistributedDataParallel", "DDP", "compile", "FullyShardedDataParallel", "FSDP"})


class Calls(Methods):
    """The part of the reader that follows calls."""

    def execute(self, body: list[ast.stmt]) -> bool:
        """Read statements."""
        raise NotImplementedError

    def call(self, node: ast.Call) -> Value:
        """The result of a call, with its arguments read first."""
        function = self.evaluate(node.func)
        args, kwargs = self._arguments(node)
        if not isinstance(function, Choice):
            return self.call_value(function, node, args, kwargs)
        result: Value | None = None
        for option in function.options:
            value = self.call_value(option, node, args, kwargs)
            result = value if result is None else join(result, value)
        return result or UNKNOWN

    def _arguments(self, node: ast.Call) -> tuple[tuple[Value, ...], dict[str, Value]]:
        args: list[Value] = []
        for expression in node.args:
            value = self.evaluate(expression)
            if isinstance(expression, ast.Starred):
                args.extend(value.items if isinstance(value, Group) else [UNKNOWN])
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
        if self._hides(node, args, kwargs):
            self.hide(node, iter((*args, *kwargs.values())))
        return UNKNOWN

    def _hides(self, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> bool:
        named = [*zip(args, node.args, strict=False), *((value, None) for value in kwargs.values())]
        return any(can_train(value, expression) for value, expression in named)

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
            names[spec.kwarg.arg] = UNKNOWN

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

    def _call_symbol(self, symbol: Symbol, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        last, first = symbol.last, args[0] if args else next(iter(kwargs.values()), UNKNOWN)
        if symbol.name.startswith("builtins."):
            return self._call_builtin(last, node, args, kwargs)
        if last in WRAPPERS and isinstance(first, Instance):
            return first
        if symbol.name.startswith("torch."):
            return self._call_torch(symbol, node, args, kwargs)
        if last in knowledge.OPTIMIZERS or last[:1].isupper() or symbol.name.startswith("torchvision.models."):
            return self._make(symbol, node, args, kwargs)
        if symbol.name.startswith("itertools.chain"):
            return Group(list(args))
        if last in PASSES_THROUGH:
            return first
        if symbol.name.startswith("numpy."):
            return self._numpy(last, node, args)
        if self._hides(node, args, kwargs):
            self.hide(node, iter((*args, *kwargs.values())))
        return UNKNOWN

    def _numpy(self, name: str, node: ast.Call, args: tuple[Value, ...]) -> Value:
        """NumPy knows no gradients: what it makes of a tensor has lost its history."""
        tensors = tuple(value for value in args if any(isinstance(option, Tensor) for option in alternatives(value)))
        return self.tensor(name, tensors, node, f"numpy.{name}()") if tensors else UNKNOWN

    def _call_builtin(self, name: str, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        first = args[0] if args else UNKNOWN
        if name in ("float", "int", "bool") and isinstance(first, Tensor):
            return self.tensor(name, (first,), node, f"{name}()")
        if name == "sum" and isinstance(first, Group):
            return self.tensor("sum", tuple(first.items), node)
        if name in ("list", "tuple", "iter", "reversed", "sorted", "next") and isinstance(first, Parameters | Group):
            return first
        if name == "filter" and len(args) == 2 and isinstance(args[1], Parameters):
            only_trainable = "requires_grad" in ast.unparse(node)
            return Parameters(args[1].owner, only_trainable, not only_trainable)
        if name == "enumerate":
            return Group([Group([UNKNOWN, self.each(first)], is_tuple=True)], complete=False) if args else UNKNOWN
        if name == "zip":
            return Group([Group([self.each(value) for value in args], is_tuple=True)], complete=False)
        if name == "float" and isinstance(first, Const):
            return Const(math.inf) if first.value in ("inf", "Inf", "infinity") else first
        if name == "getattr" and first == Symbol("torch.optim"):
            return Symbol("torch.optim.Optimizer")
        if name == "setattr" and isinstance(first, Instance):
            self.facts.escaped.add(id(first))
        if name not in knowledge.HARMLESS_CALLS and self._hides(node, args, kwargs):
            self.hide(node, iter((*args, *kwargs.values())))
        return UNKNOWN

    def _call_torch(self, symbol: Symbol, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        name, last = symbol.name, symbol.last
        first = args[0] if args else kwargs.get("input", UNKNOWN)
        if last in MODES:
            return Instance(name, self.place(node), args=args, kwargs=kwargs)
        if last.startswith("clip_grad_") and "nn.utils" in name:
            self._clip(last, node, args, kwargs)
            return UNKNOWN
        if last == "_foreach_zero_":
            self.happen(ZeroGrad(place=self.place(node)))
            return UNKNOWN
        if name == "torch.autograd.backward":
            self.happen(Backward(place=self.place(node)), first)
            return UNKNOWN
        if name.startswith("torch.nn.functional.") and last in knowledge.LOSS_FUNCTIONS:
            return self._loss(last, node, args, kwargs)
        if last in knowledge.REBUILDERS:
            return self._rebuilt(last, node, args, _asks_for_gradient(kwargs))
        if last[:1].isupper() or name.startswith("torch.optim."):
            return self._make(symbol, node, args, kwargs)
        if name.startswith(("torch.utils.", "torch.distributed", "torch.cuda.", "torch.backends", "torch.autograd.")):
            return UNKNOWN
        if last in ("save", "load", "manual_seed", "device", "no_grad"):
            return UNKNOWN
        inputs = tuple(first.items) if isinstance(first, Group) else (*args, *kwargs.values())
        result = self.tensor(last, inputs, node, knowledge.CUTS.get(last, ""))
        result.leaf = _asks_for_gradient(kwargs)
        return result

    def _clip(self, name: str, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> None:
        parameters = args[0] if args else kwargs.get("parameters", UNKNOWN)
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value", UNKNOWN))
        number = limit.value if isinstance(limit, Const) else None
        if limit in NO_LIMIT or (isinstance(number, int | float) and number >= LARGEST_LIMIT):
            return
        kind = "value" if "value" in name else "norm"
        event = Clip(kind=kind, target=self._owner_label(parameters), place=self.place(node))
        self.happen(event, subject=parameters)

    def _rebuilt(self, name: str, node: ast.Call, args: tuple[Value, ...], leaf: bool) -> Value:
        first = args[0] if args else UNKNOWN
        inputs = tuple(first.items) if isinstance(first, Group) else (first,)
        has_history = any(isinstance(option, Tensor) for value in inputs for option in alternatives(value))
        result = self.tensor("rebuilt", inputs, node, f"torch.{name}()" if has_history else "")
        result.leaf = leaf and not has_history
        return result

    def _owner_label(self, parameters: Value) -> str | None:
        owner = parameters.owner if isinstance(parameters, Parameters) else None
        return (owner.label or owner.last) if isinstance(owner, Instance) else None

    def _make(self, symbol: Symbol, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        instance = Instance(symbol.name, self.place(node), args=args, kwargs=kwargs)
        if knowledge.is_optimizer(instance):
            self._made_optimizer(instance, node)
        elif symbol.name.startswith("torchvision.models."):
            instance.fresh = not kwargs.get("pretrained") and not kwargs.get("weights")
        elif instance.last in knowledge.CONTAINERS:
            instance.items = _children(args)
            for child in instance.items:
                adopt(instance, child)
        elif instance.last == "Variable" and args:
            return args[0]
        if self.forward_depth and knowledge.has_weights(instance) and instance.cls is None:
            self.facts.made_in_forward.append((instance, self.place(node)))
        return instance

    def _made_optimizer(self, optimizer: Instance, node: ast.Call) -> None:
        parameters = optimizer.args[0] if optimizer.args else optimizer.kwargs.get("params", UNKNOWN)
        place = self.place(node)
        self.facts.optimizers.append(OptimizerMade(optimizer, parameters, place, self.tick()))
        self.happen(OptimizerSeen(optimizer=optimizer.last, kind=optimizer.last, place=place), subject=optimizer)

    def _call_instance(
        self, instance: Instance, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        if instance.cls is not None:
            return self._call_user_object(instance, node, args, kwargs)
        loss = knowledge.LOSSES.get(instance.last)
        if loss and instance.kind.startswith("torch.nn."):
            return self._loss(loss, node, args, kwargs, instance)
        if instance.last == "Sequential":
            return self._chain(instance, node, args)
        if knowledge.is_module(instance):
            self.facts.called.setdefault(id(instance), []).append(self.place(node))
            operation = MODULE_OPERATIONS.get(instance.last, instance.last)
            output = self.tensor(operation, (*args, *kwargs.values()), node, module=instance)
            return self._through_new_head(instance, node, output)
        if self._hides(node, args, kwargs):
            self.hide(node, iter((*args, *kwargs.values())))
        return UNKNOWN

    def _through_new_head(self, model: Instance, node: ast.Call, output: Value) -> Value:
        """A ready-made model whose last layer the user replaced ends in that layer."""
        for name in HEADS if model.kind.startswith("torchvision.models.") else ():
            head = model.attrs.get(name)
            if isinstance(head, Instance) and not head.kind.startswith("part of "):
                return self.call_value(head, node, (output,), {})
        return output

    def _chain(self, sequential: Instance, node: ast.Call, args: tuple[Value, ...]) -> Value:
        value = args[0] if args else UNKNOWN
        for item in sequential.items:
            value = self.call_value(item, node, (value,), {})
            if (
                isinstance(value, Tensor)
                and isinstance(item, Instance)
                and item.cls is None
                and item.last != "Sequential"
            ):
                value.place = item.place
        return value

    def _call_user_object(
        self, instance: Instance, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        assert instance.cls is not None
        is_module = knowledge.is_module_class(instance.cls)
        method = find_method(instance.cls, "forward" if is_module else "__call__")
        if method is None:
            sequential = any(isinstance(b, Symbol) and b.last == "Sequential" for b in instance.cls.bases)
            return self._chain(instance, node, args) if sequential and instance.items else UNKNOWN
        if not is_module:
            return self.call_function(UserFunction(method[0], method[1].scope, instance, method[1]), args, kwargs)
        if not self.forward_depth:
            event = Forward(
                model=instance.label or instance.last, grad_enabled=self.grad_off is None, place=self.place(node)
            )
            self.happen(event, subject=instance)
        self.forward_depth += 1
        try:
            return self.call_function(UserFunction(method[0], method[1].scope, instance, method[1]), args, kwargs)
        finally:
            self.forward_depth -= 1

    def _loss(
        self,
        loss: str,
        node: ast.Call,
        args: tuple[Value, ...],
        kwargs: dict[str, Value],
        module: Instance | None = None,
    ) -> Value:
        prediction = args[0] if args else kwargs.get("input", UNKNOWN)
        target = args[1] if len(args) > 1 else kwargs.get("target", UNKNOWN)
        records = None if self.grad_unknown else self.grad_off is None
        event = LossCall(loss=loss, output_requires_grad=records, place=self.place(node))
        self.happen(event, prediction, target)
        classes = loss in ("cross_entropy", "nll_loss")
        return self.tensor(loss, (prediction,) if classes else (prediction, target), node, module=module)


def _asks_for_gradient(kwargs: dict[str, Value]) -> bool:
    return kwargs.get("requires_grad", Const(False)) != Const(False)


def _decorator_name(node: ast.expr) -> str:
    target = node.func if isinstance(node, ast.Call) else node
    return dotted(target).rpartition(".")[2]


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
