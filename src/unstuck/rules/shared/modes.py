"""Train and eval mode in a script: which modules care, and which code evaluates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from unstuck.lazy import pattern
from unstuck.source.facts import Called
from unstuck.source.reader import knowledge
from unstuck.source.trace import Loop
from unstuck.source.values import Const, Instance, UserClass, Value, alternatives

EVALUATION = pattern(r"(^|_)(evals?|evaluate|evaluation|tests?|testing|val|valid\w*|dev|infer\w*|predict\w*)(_|\d|$)")
"""Names of functions, loaders and loops that evaluate."""
NORMALISING = pattern(r"^(Lazy)?(BatchNorm[123]d|InstanceNorm[123]d)$|^SyncBatchNorm$")
DROPPING = pattern(r"^(Feature)?(Alpha)?Dropout[123]?d?$")
READY_MADE = pattern(
    r"resnet|resnext|vgg|alexnet|densenet|inception|googlenet|mobilenet|efficientnet|shufflenet|mnasnet|squeezenet|regnet"
)
"""Models of torchvision that hold BatchNorm or Dropout."""
FORGETFUL = {"TransformerEncoderLayer": 3, "TransformerDecoderLayer": 3, "Transformer": 5}
"""Layers that drop 10 % by default, and the position of that argument."""
MEANT_RANDOM = pattern(r"(?i)\bmc|_mc|monte|bayes|uncertain|always|stochastic|augment|corrupt|nois|prenet|simcse")
"""Words that say that dropout should stay on."""
RECURRENT = frozenset({"RNN", "LSTM", "GRU"})
"""Layers with a `dropout` argument for dropping between their own layers."""


def says_evaluation(name: str) -> bool:
    """Does a dotted name mention evaluation: `validate`, `self.test_loader`?"""
    return any(EVALUATION.search(_snake(part)) for part in name.split("."))


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def evaluates(called: Called) -> bool:
    """Is a call in code that evaluates, by the name of its function or of what its loop iterates over?"""
    return says_evaluation(called.function) or any(over_evaluation_data(loop) for loop in called.loops[-1:])


def over_evaluation_data(loop: Loop) -> bool:
    """Does a `for` loop iterate over something whose name mentions evaluation?"""
    node = loop.node
    if not isinstance(node, ast.For | ast.AsyncFor):
        return False
    names = (part for part in ast.walk(node.iter) if isinstance(part, ast.Name | ast.Attribute))
    return any(says_evaluation(part.id if isinstance(part, ast.Name) else part.attr) for part in names)


def mode_dependent(model: Instance) -> Instance | None:
    """A layer that certainly is in the model and certainly behaves differently in train and in eval mode."""
    return next((part for part in certain_parts(model) if _depends_on_mode(part)), None)


def perhaps_mode_dependent(model: Instance) -> Instance | None:
    """A layer of the model with an unknown dropout share: `nn.Dropout(config.dropout)`."""
    return next((part for part in certain_parts(model) if _depends_on_mode(part, unknown_share=True)), None)


def certain_parts(model: Instance) -> Iterator[Instance]:
    """The model and every module that certainly is in it."""
    waiting: list[Value] = [model]
    seen: set[int] = set()
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, Instance) or id(part) in seen or not knowledge.is_module(part):
            continue
        seen.add(id(part))
        yield part
        waiting += [*part.attrs.values(), *part.items]


def _depends_on_mode(part: Instance, unknown_share: bool = False) -> bool:
    if part.cls is not None:
        return False
    if part.kind.startswith("torchvision.models."):
        return READY_MADE.search(part.last) is not None
    if DROPPING.match(part.last):
        return _drops(_share(part, 0, "p", 0.5), unknown_share)
    if part.last in FORGETFUL:
        return _drops(_share(part, FORGETFUL[part.last], "dropout", 0.1), unknown_share)
    if part.last in RECURRENT:
        layers = _share(part, 2, "num_layers", 1)
        several = isinstance(layers, Const) and isinstance(layers.value, int) and layers.value > 1
        return several and _drops(_share(part, 5, "dropout", 0.0), unknown_share)
    instance = part.last.startswith(("InstanceNorm", "LazyInstanceNorm"))
    tracks = part.kwargs.get("track_running_stats", Const(not instance))
    return bool(NORMALISING.match(part.last)) and tracks == Const(True)


def _share(part: Instance, position: int, name: str, default: float) -> Value:
    """An argument of a layer, by position or by name."""
    return part.args[position] if position < len(part.args) else part.kwargs.get(name, Const(default))


def _drops(share: Value, unknown_share: bool) -> bool:
    if not isinstance(share, Const):
        return unknown_share
    return isinstance(share.value, int | float) and share.value > 0


def switches_itself(model: Instance) -> bool:
    """Does a user's class in the model define its own `train` or `eval`, which may do anything?"""
    return any(part.cls is not None and _defines(part.cls, ("train", "eval")) for part in certain_parts(model))


def _defines(cls: UserClass, names: Iterable[str], depth: int = 0) -> bool:
    above = (option for base in cls.bases for option in alternatives(base) if isinstance(option, UserClass))
    return any(name in cls.methods for name in names) or (
        depth < 8 and any(_defines(b, names, depth + 1) for b in above)
    )


def within(part: Instance, whole: Instance) -> bool:
    """Is `part` the module `whole` or inside it?"""
    above: Instance | None = part
    while above is not None and above is not whole:
        above = above.parent
    return above is whole
