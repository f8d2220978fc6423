"""Objects that only hold values under names: namedtuples, dataclasses, Munch and the like."""

from __future__ import annotations

import ast

from unstuck.events import Place
from unstuck.source.reader.scope import dotted
from unstuck.source.values import Const, Group, Instance, Symbol, UserClass, Value, lineage

NAMESPACES = frozenset("Munch munchify Bunch AttrDict EasyDict DotMap Box SimpleNamespace Namespace".split())
"""Classes whose objects have the attributes that they are given."""
HOLDS_FIELDS = frozenset({"dataclass", "NamedTuple", "ModelOutput"})


def namespace(name: str, args: tuple[Value, ...], kwargs: dict[str, Value], place: Place | None) -> Instance:
    """`Munch(encoder=a, decoder=b)` or `AttrDict({"encoder": a})`."""
    held = dict(kwargs)
    for given in args:
        if isinstance(given, Group) and given.keys is not None:
            held |= {key: value for key, value in zip(given.keys, given.items, strict=False) if isinstance(key, str)}
    return Instance(name, place, args=args, kwargs=kwargs, attrs=held)


def namedtuple(cls: Instance, args: tuple[Value, ...], kwargs: dict[str, Value], place: Place | None) -> Instance:
    """`Losses(a, b)` of `Losses = namedtuple("Losses", ["first", "second"])`."""
    listed = cls.args[1] if len(cls.args) > 1 else Const("")
    if isinstance(listed, Group):
        names = [item.value if isinstance(item, Const) else None for item in listed.items]
    else:
        names = list(str(listed.value).replace(",", " ").split()) if isinstance(listed, Const) else []
    attrs = {name: value for name, value in zip(names, args, strict=False) if isinstance(name, str)}
    return Instance("namedtuple", place, attrs={**attrs, **kwargs}, items=list(args))


def set_fields(instance: Instance, cls: UserClass) -> None:
    """The attributes of a dataclass's object are what it was made with."""
    if not _holds_fields(cls):
        return
    classes = [base for base in lineage(cls) if isinstance(base, UserClass)]
    fields = [
        statement.target.id
        for base in reversed(classes)
        for statement in base.node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]
    names = list(dict.fromkeys(fields))
    instance.attrs.update(zip(names, instance.args, strict=False))
    instance.attrs.update({name: value for name, value in instance.kwargs.items() if name in names})


def _holds_fields(cls: UserClass) -> bool:
    decorators = [item.func if isinstance(item, ast.Call) else item for item in cls.node.decorator_list]
    names = {dotted(item).rpartition(".")[2] for item in decorators}
    names |= {base.last for base in lineage(cls) if isinstance(base, Symbol)}
    return bool(names & HOLDS_FIELDS)
