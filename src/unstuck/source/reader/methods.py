"""What methods of torch objects do: `loss.backward()`, `optimizer.step()`, `model.train()`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import ClassVar

from unstuck.events import Backward, Clip, ModeChange, OptimizerStep, ScalerUpdate, SchedulerStep, Unscale, ZeroGrad
from unstuck.lazy import pattern
from unstuck.source.reader import knowledge
from unstuck.source.reader.base import can_train, dotted
from unstuck.source.reader.expressions import Expressions
from unstuck.source.values import (
    UNKNOWN,
    Const,
    Group,
    Instance,
    Method,
    Param,
    Parameters,
    Symbol,
    Tensor,
    UserFunction,
    Value,
    adopt,
    alternatives,
)

OPTIMIZER_WORDS = pattern(r"opt(im\w*|imi[sz]er\w*)?(_?[a-z0-9]{1,3})?$|^(d|g|critic|actor)_?opt|solver$|optim", re.I)
SCHEDULER_WORDS = pattern(r"sched|warmup|lr_|_lr$", re.I)
SCALER_WORDS = pattern(r"scaler$", re.I)
RETURNS_ITSELF = frozenset(
    "to cuda cpu half float double bfloat16 type apply share_memory eval train compile requires_grad_".split()
)
HIDING_METHODS = frozenset(
    "step backward zero_grad optimize update minimize train_step fit train_on_batch training_step train_batch "
    "optimize_parameters update_parameters run_step".split()
)

GRADIENT_HOOKS = frozenset(
    "register_hook register_post_accumulate_grad_hook register_step_pre_hook register_step_post_hook".split()
)
WORLD_WORDS = pattern(
    r"(^|[._])(envs?|environment|gym|game|world|simulator|sim|progress|pbar|bar|profiler|prof)$", re.I
)
"""What has a step() or an update() of its own that trains nothing: an environment, a progress bar, a profiler."""
SUPER = Symbol("builtins.super")


class Methods(Expressions):
    """The part of the reader that knows methods of objects it cannot look into."""

    def call_method(self, method: Method, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        """The result of calling a method that the user did not write."""
        receiver, name = method.receiver, method.name
        if ".grad" in dotted(method.node) and (name == "zero_" or (name in ("fill_", "mul_") and args == (Const(0),))):
            self.happen(ZeroGrad(place=self.place(node)))
            return UNKNOWN
        if name == "manual_backward" and args:
            self._backward(args[0], node)
            return Const(None)
        if name in GRADIENT_HOOKS:
            # The hook may step and clear at every backward: no optimizer is beyond its reach.
            self.facts.escaped.update(id(made.optimizer) for made in self.facts.optimizers)
            return UNKNOWN
        if receiver == SUPER:
            return self._on_super(name, args)
        if isinstance(receiver, Tensor):
            return self._on_tensor(receiver, name, node, args, kwargs)
        if isinstance(receiver, Group):
            return self._on_group(receiver, name, args)
        if isinstance(receiver, Instance):
            return self._on_instance(receiver, method, node, args, kwargs)
        if isinstance(receiver, Parameters | Param):
            return self._on_parameters(receiver, name, node, args)
        return self._on_unknown(method, node, args, kwargs)

    def _on_super(self, name: str, args: tuple[Value, ...]) -> Value:
        """`super().__init__(layers...)` of a class derived from a container of torch."""
        owner, cls = self.frame.owner, self.frame.defined_in
        bases = cls.bases if cls is not None and name == "__init__" else ()
        if owner is not None and any(isinstance(base, Symbol) and base.last in knowledge.CONTAINERS for base in bases):
            self._add_children(owner, args)
        return UNKNOWN

    def _on_tensor(
        self, tensor: Tensor, name: str, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        if name == "backward":
            self._backward(tensor, node)
            return Const(None)
        if name == "requires_grad_":
            self.set_trainable(tensor, args[0] if args else Const(True), node)
        cut = knowledge.CUTS.get(name, "")
        # `labels.to(device)` holds what labels held, whatever the device is.
        others = () if name in knowledge.SAME_VALUES else (*args, *kwargs.values())
        return self.tensor(name, (tensor, *others), node, cut, args=args, options=kwargs)

    def _backward(self, value: Value, node: ast.Call) -> None:
        self.happen(Backward(place=self.place(node)), value)

    def _on_group(self, group: Group, name: str, args: tuple[Value, ...]) -> Value:
        if name in ("append", "add", "insert") and args:
            group.extend([self.if_reached(args[-1])])
            group.complete = False
        elif name in ("extend", "update") and args:
            for option in alternatives(args[0]):
                added = list(option.items) if isinstance(option, Group) and option is not group else [UNKNOWN]
                group.extend(map(self.if_reached, added))
            group.complete = False
        elif name == "pop" and group.items and group.keys is None and not args:
            last = group.items.pop()
            if self.frame.branches:
                group.items.append(self.if_reached(last))
            return last
        elif name == "items":
            return Group([Group([UNKNOWN, item], is_tuple=True) for item in group.items], complete=False)
        elif name == "values":
            return Group(group.items, group.complete)
        elif name in ("pop", "get") and group.items:
            key = args[0] if args else UNKNOWN
            if group.keys is not None and isinstance(key, Const):
                return group.items[group.keys.index(key.value)] if key.value in group.keys else UNKNOWN
            return self.each(Group(group.items))
        return UNKNOWN

    def _on_parameters(self, value: Parameters | Param, name: str, node: ast.Call, args: tuple[Value, ...]) -> Value:
        if name == "requires_grad_" and isinstance(value, Param):
            self.set_trainable(value, args[0] if args else Const(True), node)
        elif isinstance(value, Param) and name.endswith("_"):
            self.hide(node, iter((value.owner,)))
        return UNKNOWN if isinstance(value, Param) else value

    def _on_instance(
        self, receiver: Instance, method: Method, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        for known, handle in self._by_kind:
            if known(receiver):
                handled: Value | None = handle(self, receiver, method, node, args, kwargs)
                if handled is not None:
                    return handled
        if receiver.last in knowledge.FRAMEWORKS:
            return self._on_framework(method, node, args)
        return self._on_unknown(method, node, args, kwargs)

    def _on_optimizer(
        self, optimizer: Instance, method: Method, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value | None:
        label, place = optimizer.label or optimizer.last, self.place(node)
        if method.name == "zero_grad":
            none = kwargs.get("set_to_none", args[0] if args else Const(True))
            to_none = not (isinstance(none, Const) and none.value is False)
            self.happen(ZeroGrad(optimizer=label, set_to_none=to_none, place=place), subject=optimizer)
        elif method.name in ("step", "first_step", "second_step"):
            closure = args[0] if args else kwargs.get("closure")
            if isinstance(closure, UserFunction):
                self.call_function(closure, (), {})
            closed = closure is not None and not isinstance(closure, Const)
            self.happen(OptimizerStep(optimizer=label, inside_closure=closed, place=place), subject=optimizer)
            return optimizer
        elif method.name == "add_param_group":
            self.facts.groups_added.append((optimizer, self.tick()))
        elif method.name not in ("state_dict", "load_state_dict"):
            return None
        return UNKNOWN

    def _on_scheduler(self, scheduler: Instance, method: Method, node: ast.Call, *_: object) -> Value | None:
        if method.name == "step":
            self.happen(SchedulerStep(kind=scheduler.last, place=self.place(node)), subject=scheduler)
        return UNKNOWN

    def _on_scaler(
        self, scaler: Instance, method: Method, node: ast.Call, args: tuple[Value, ...], *_: object
    ) -> Value | None:
        return self._scaler_call(method.name, node, args, scaler)

    def _scaler_call(self, name: str, node: ast.Call, args: tuple[Value, ...], scaler: Value = UNKNOWN) -> Value:
        subject = args[0] if args else UNKNOWN
        label = self._label(subject, node.args[0] if node.args else None)
        if name == "scale":
            return self.tensor("scale", (subject,), node, options={"scaler": scaler})
        place = self.place(node)
        if name == "unscale_":
            self.happen(Unscale(optimizer=label, place=place), subject=subject).scaler = scaler
        elif name == "step":
            step = OptimizerStep(optimizer=label, through_scaler=True, place=place)
            self.happen(step, subject=subject).scaler = scaler
        elif name == "update":
            self.happen(ScalerUpdate(place=place)).scaler = scaler
        return UNKNOWN

    def _on_module(
        self, module: Instance, method: Method, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value | None:
        name, label = method.name, module.label or module.last
        if name in ("parameters", "named_parameters"):
            whole = Parameters(module)
            return (
                whole
                if name == "parameters"
                else Group([Group([UNKNOWN, Param(module)], is_tuple=True)], complete=False)
            )
        if name == "zero_grad":
            self.happen(ZeroGrad(model=label, place=self.place(node)), subject=module)
        elif name in ("train", "eval"):
            flag = args[0] if args else kwargs.get("mode", Const(True))
            training = name == "train" and not (isinstance(flag, Const) and flag.value is False)
            self.happen(ModeChange(model=label, training=training, place=self.place(node)), subject=module)
        elif name == "requires_grad_":
            self.set_trainable(module, args[0] if args else Const(True), node)
        elif name == "apply" and args and isinstance(args[0], UserFunction):
            self.call_function(args[0], (module,), {})
        elif name == "load_state_dict":
            self.facts.loaded.add(id(module))
        elif name in ("add_module", "register_module", "append", "extend", "insert"):
            self._add_children(module, args[-1:])
        elif name == "forward":
            return self.call_value(module, node, args, kwargs)
        return module if name in RETURNS_ITSELF else UNKNOWN

    def _add_children(self, module: Instance, added: tuple[Value, ...]) -> None:
        for value in added:
            for child in value.items if isinstance(value, Group) else [value]:
                module.items.append(child)
                for option in alternatives(child):
                    adopt(module, option)

    def call_value(self, value: Value, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        """The result of calling a value."""
        raise NotImplementedError

    def _on_framework(self, method: Method, node: ast.Call, args: tuple[Value, ...]) -> Value:
        """Accelerate and Fabric: they wrap objects and run backward, and may leave steps out on purpose."""
        name = method.name
        if name in ("prepare", "setup", "setup_module", "setup_dataloaders", "setup_optimizers"):
            return args[0] if len(args) == 1 else Group(list(args), is_tuple=True)
        if name == "backward":
            self.happen(Backward(place=self.place(node)), args[0] if args else UNKNOWN)
            self.hide(node, iter(args))
        elif name.startswith(("clip_grad", "clip_gradients")):
            self.happen(Clip(place=self.place(node)), subject=args[0] if args else UNKNOWN)
        return UNKNOWN

    def _on_unknown(self, method: Method, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
        name, text = method.name, dotted(method.node.value)
        last = text.rpartition(".")[2]
        place = self.place(node)
        if name == "backward":
            self._unknown_backward(method, node, args, last)
        elif name == "zero_grad":
            optimizer = text if OPTIMIZER_WORDS.search(last) else None
            self.happen(ZeroGrad(optimizer=optimizer, place=place), subject=method.receiver)
        elif name == "requires_grad_":
            self.set_trainable(method.receiver, args[0] if args else Const(True), node)
        elif name == "step" and SCALER_WORDS.search(last):
            return self._scaler_call(name, node, args)
        elif name == "step" and SCHEDULER_WORDS.search(last):
            self.happen(SchedulerStep(kind=text, place=place))
        elif name == "step" and OPTIMIZER_WORDS.search(last):
            self._unknown_step(text, node, args)
        elif name in ("scale", "unscale_", "update") and SCALER_WORDS.search(last):
            return self._scaler_call(name, node, args)
        elif name in ("parameters", "named_parameters"):
            whole: Value = Parameters(method.receiver)
            pair = Group([Group([UNKNOWN, Param(method.receiver)], is_tuple=True)], complete=False)
            return whole if name == "parameters" else pair
        elif self._may_train(method, node, args, kwargs):
            self.hide(node, iter((method.receiver, *args, *kwargs.values())))
        elif name in RETURNS_ITSELF:
            return method.receiver
        return UNKNOWN

    def _unknown_backward(self, method: Method, node: ast.Call, args: tuple[Value, ...], last: str) -> None:
        # `accelerator.backward(loss)` hands the loss over; `loss.backward(gradient=...)` is the loss itself.
        handed = bool(args) and not re.search(r"loss|err|cost|out|sum|total", last, re.I)
        self.happen(Backward(place=self.place(node)), args[0] if handed else method.receiver)
        if handed:
            self.hide(node, iter(args))

    def _unknown_step(self, text: str, node: ast.Call, args: tuple[Value, ...]) -> None:
        closure = args[0] if args else None
        if isinstance(closure, UserFunction):
            self.call_function(closure, (), {})
        self.happen(OptimizerStep(optimizer=text, inside_closure=closure is not None, place=self.place(node)))

    def _may_train(self, method: Method, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> bool:
        if method.name in HIDING_METHODS and not isinstance(method.receiver, Symbol):
            return not WORLD_WORDS.search(dotted(method.node.value))
        return self.hides(node, args, kwargs)

    def hides(self, node: ast.Call, args: tuple[Value, ...], kwargs: dict[str, Value]) -> bool:
        """Was a call that cannot be followed given something able to train?"""
        named = [*zip(args, node.args, strict=False), *((value, None) for value in kwargs.values())]
        return any(can_train(value, expression) for value, expression in named)

    def _label(self, value: Value, node: ast.expr | None) -> str:
        if isinstance(value, Instance) and value.label:
            return value.label
        return dotted(node) if node is not None else ""

    _by_kind: ClassVar[tuple[tuple[Callable[[Value], bool], Callable[..., Value | None]], ...]] = (
        (knowledge.is_optimizer, _on_optimizer),
        (knowledge.is_scheduler, _on_scheduler),
        (knowledge.is_scaler, _on_scaler),
        (knowledge.is_module, _on_module),
    )
