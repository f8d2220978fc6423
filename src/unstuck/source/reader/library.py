"""Reading calls into libraries: builtins, NumPy, and the functions and classes of torch."""

from __future__ import annotations

import ast
import math

from unstuck.events import Backward, Clip, LossCall, OptimizerSeen, ZeroGrad
from unstuck.source.facts import OptimizerMade, SchedulerMade
from unstuck.source.reader import knowledge
from unstuck.source.reader.methods import Methods
from unstuck.source.values import (
    UNKNOWN,
    Const,
    Group,
    Instance,
    Parameters,
    Symbol,
    Tensor,
    Value,
    adopt,
    alternatives,
)

MODES = frozenset({"no_grad", "inference_mode", "enable_grad", "set_grad_enabled"})
PASSES_THROUGH = frozenset({"tqdm", "trange", "track", "islice", "cycle"})
NO_LIMIT = frozenset({Symbol("math.inf"), Symbol("torch.inf"), Symbol("numpy.inf")})
WRAPPERS = frozenset(
    "DataParallel DistributedDataParallel DDP compile FullyShardedDataParallel FSDP convert_sync_batchnorm".split()
)


class Library(Methods):
    """The part of the reader that knows what library functions make of their arguments."""

    def _call_symbol(self, symbol: Symbol, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        last, first = symbol.last, args[0] if args else next(iter(kwargs.values()), UNKNOWN)
        if symbol.name.startswith("builtins."):
            return self._call_builtin(last, node, args, kwargs)
        if last in WRAPPERS and all(isinstance(option, Instance) for option in alternatives(first)):
            return first
        if symbol.name.startswith("torch."):
            return self._call_torch(symbol, node, args, kwargs)
        made = last in knowledge.OPTIMIZERS or last[:1].isupper() or knowledge.is_schedule_function(last)
        if made or symbol.name.startswith("torchvision.models."):
            return self._make(symbol, node, args, kwargs)
        if symbol.name == "functools.partial":
            return Instance(symbol.name, self.place(node), args=args, kwargs=kwargs)
        if symbol.name.startswith("itertools.chain"):
            return Group(list(args))
        if last in PASSES_THROUGH:
            return first
        if symbol.name.startswith("numpy."):
            return self._numpy(last, node, args)
        if self.hides(node, args, kwargs):
            self.hide(node, iter((*args, *kwargs.values())))
        return UNKNOWN

    def _numpy(self, name: str, node: ast.Call, args: tuple[Value, ...]) -> Value:
        """NumPy knows no gradients: what it makes of a tensor has lost its history."""
        tensors = tuple(value for value in args if any(isinstance(option, Tensor) for option in alternatives(value)))
        cut = "" if name in knowledge.NUMPY_ASKS_THE_TENSOR else f"numpy.{name}()"
        return self.tensor(name, tensors, node, cut, args=args) if tensors else UNKNOWN

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
        if name not in knowledge.HARMLESS_CALLS and self.hides(node, args, kwargs):
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
        result = self.tensor(last, inputs, node, knowledge.CUTS.get(last, ""), args=args[1:], options=kwargs)
        result.leaf = _asks_for_gradient(kwargs)
        return result

    def _clip(self, name: str, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> None:
        parameters = args[0] if args else kwargs.get("parameters", UNKNOWN)
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm", kwargs.get("clip_value", UNKNOWN))
        number = limit.value if isinstance(limit, Const) else None
        if limit in NO_LIMIT or (isinstance(number, int | float) and number >= knowledge.LARGEST_LIMIT):
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
        elif knowledge.is_scheduler(instance):
            self._made_scheduler(instance, node)
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

    def _made_scheduler(self, scheduler: Instance, node: ast.Call) -> None:
        optimizer = scheduler.args[0] if scheduler.args else scheduler.kwargs.get("optimizer", UNKNOWN)
        self.facts.schedulers.append(SchedulerMade(scheduler, optimizer, self.place(node), node, self.tick()))

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
        happened = self.happen(event, prediction, target)
        happened.options = {**(module.kwargs if module is not None else {}), **kwargs}
        inputs = (prediction,) if loss in ("cross_entropy", "nll_loss") else (prediction, target)
        happened.result = self.tensor(loss, inputs, node, module=module, args=args[1:], options=happened.options)
        return happened.result


def _asks_for_gradient(kwargs: dict[str, Value]) -> bool:
    return kwargs.get("requires_grad", Const(False)) != Const(False)


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
