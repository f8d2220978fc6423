"""G20: a derivative from torch.autograd.grad() is part of the loss, but nothing can be learned through it."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.findings import Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.source import Script
from unstuck.source.edits.edit import Editor, fix_with
from unstuck.source.reader import knowledge
from unstuck.source.values import Choice, Group, Tensor, Value

rule = Rule(
    code="G20",
    name="derivative-without-graph",
    title="a derivative in the loss that torch.autograd.grad() computed without create_graph=True",
    severity=Severity.ERROR,
    explains=("O01", "O07", "R03", "R08"),
)

PRODUCTS = frozenset({"linear", "conv1d", "conv2d", "conv3d", "matmul", "mm", "bmm", "einsum", "bilinear"})
"""Operations that compute something new from it: an adversarial input or a weight after one step may be a constant."""
MOST = 10_000


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """A derivative that reaches backward() through arithmetic alone."""
    losses = [call.value for call in script.facts.backwards if call.value is not None]
    for derivative in _derivatives(Group(losses)):
        if derivative.place is None:
            continue
        edits = Editor(script).set_keyword(derivative.place, "create_graph", "True")
        yield rule.finding(
            "The loss contains a derivative that torch.autograd.grad() computed without create_graph=True.",
            cause="Without its graph the derivative is a constant for backward(): this part of the loss has a value, "
            "but no gradient, so training never reduces it.",
            fix=fix_with("Pass create_graph=True to torch.autograd.grad().", edits, "safe"),
            subject=Subject("call", "torch.autograd.grad"),
            place=derivative.place,
        )


def _derivatives(value: Value) -> Iterator[Tensor]:
    """The derivatives without a graph behind a value, as far as arithmetic and other functions lead back to them."""
    waiting: list[Value] = [value]
    seen: set[int] = set()
    while waiting and len(seen) < MOST:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Group):
            waiting += item.items
        elif isinstance(item, Choice):
            waiting += item.options
        elif isinstance(item, Tensor):
            if item.op == "autograd_grad" and item.cut:
                yield item
            elif not item.cut and not _computes_anew(item):
                waiting += item.inputs


def _computes_anew(tensor: Tensor) -> bool:
    module = tensor.module
    return tensor.op in PRODUCTS or (module is not None and (module.cls is not None or knowledge.has_weights(module)))
