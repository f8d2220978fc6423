"""The parameters of each optimizer as its gauges are told: their names, their columns and the room for samples."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.optim import Optimizer

from unstuck.capture.measure.ring import Ring
from unstuck.capture.measure.samples import readable
from unstuck.capture.measure.tensor_tables import Row
from unstuck.capture.measure.tensors import is_plain
from unstuck.capture.watch import Watch
from unstuck.events import Gauges, TensorsNamed

_SHARE = 8 * 2**20
"""Each time so many bytes were written, the gauges come half as often."""
_BYTES = 48
"""What the gauges of one tensor take in the record, roughly."""
LONG_AGO = -2
"""A window that no other follows."""
_MOST = 8
"""Of a program that builds optimizer after optimizer only the last are remembered."""


class Step:
    """A step that was measured and has not been told."""

    def __init__(self, number: int, row: Row) -> None:
        self.number = number
        self.row = row
        self.gauges: Gauges | None = None
        """What is to be told of this step together with the gauges of its tensors."""


class Layout:
    """The parameters of one optimizer, their columns and their samples."""

    def __init__(self, label: str, keys: tuple[int, ...], known: int) -> None:
        self.label = label
        self.keys = keys
        self.columns: list[int] = []
        self.known = known
        """How many modules had been seen to run when it was made."""
        self.measured = self.bytes = 0
        self.next_histogram = 0
        self.elements = 0
        self.places: list[int] = []
        """Which of the parameters can be read; then, for each of these:"""
        self.lengths: list[int] = []
        self.sizes: list[float] = []
        """How many times larger the tensor is than its sample."""
        self.plain: list[bool] = []
        """Is it what `is_plain` says? Then so is its gradient, if that is dense."""
        self.ring: Ring | None = None
        self.window = LONG_AGO
        """When it was last measured."""
        self.restless = False
        """Do the weights change between the steps too, or unevenly, or can that not be told without waiting?"""
        self.versions: list[int] = []
        """Count the changes of each parameter, up to the last step."""
        self.by_step: list[int] = []
        """How many of them a step makes."""
        self.in_a_row = False
        """Did the last step begin where the one before it had ended?"""
        self.steps: list[Step] = []

    @property
    def is_calm(self) -> bool:
        """Is all that changes the weights known to be the steps, so that each begins where the last one ended?"""
        is_told_always = self.bytes < _SHARE
        return self.in_a_row and is_told_always and not self.restless

    def count(self) -> bool:
        """Count a step; True if it is to be told. Ever fewer are, for a model of very many tensors, so that the record
        stays within its budget."""
        self.measured += 1
        wanted = self.measured % (1 << self.bytes // _SHARE) == 0
        self.bytes += _BYTES * len(self.keys) * wanted
        return wanted

    def describe(
        self, parameters: list[Tensor], places: list[int], tensors: list[Tensor], samples: list[Tensor]
    ) -> None:
        """Note what the tensors are like that stand for some of the parameters, and make room for their samples."""
        self.places = places
        self.plain = [is_plain(parameters[place]) for place in places]
        self.lengths = [part.numel() for part in samples]
        self.sizes = [whole.numel() / length for whole, length in zip(tensors, self.lengths, strict=True)]
        self.elements = sum(whole.numel() for whole in tensors)
        self.ring = Ring(samples)


class Layouts:
    """Those of the optimizers that stepped last. `flush` is called before one is forgotten."""

    def __init__(self, watch: Watch, flush: Callable[[], None]) -> None:
        self._watch = watch
        self._flush = flush
        self.known: dict[str, Layout] = {}

    def of(self, optimizer: Optimizer, parameters: list[Tensor]) -> Layout:
        """The layout of an optimizer that holds these."""
        label = self._watch.objects.optimizer(optimizer)
        keys, known = tuple(map(id, parameters)), self._watch.objects.order.count
        layout = self.known.get(label)
        if layout is None or layout.keys != keys or (layout.known != known and layout.measured < 3):
            fresh = Layout(label, keys, known)
            if layout is not None:
                self._flush()
                fresh.measured, fresh.bytes, fresh.next_histogram = layout.measured, layout.bytes, layout.next_histogram
            fresh.columns = self._name(label, optimizer, parameters)
            if len(self.known) >= _MOST:
                self._flush()
                del self.known[next(iter(self.known))]
            layout = self.known[label] = fresh
        return layout

    def _name(self, label: str, optimizer: Optimizer, parameters: list[Tensor]) -> list[int]:
        """Tell the names in the order of execution; the column of each parameter."""
        owners = self._owners()
        groups = [number for number, group in enumerate(optimizer.param_groups) for _ in group["params"]]
        facts = [owners.get(id(parameter), ("", "", -1)) for parameter in parameters]
        order = sorted(range(len(parameters)), key=lambda place: (facts[place][2] < 0, facts[place][2], place))
        unreadable = [facts[place][0] for place in order if readable(parameters[place]) is None]
        if unreadable:
            few = ", ".join(name or "a parameter" for name in unreadable[:3])
            self._watch.note(f"the values of {few}{' ...' if len(unreadable) > 3 else ''}: no kind that can be read")
        self._watch.tell(
            TensorsNamed(
                step=self._watch.window.steps,
                optimizer=label,
                names=tuple(facts[place][0] or f"param_groups[{groups[place]}]" for place in order),
                kinds=tuple(facts[place][1] for place in order),
                sizes=tuple(parameters[place].numel() for place in order),
                dimensions=tuple(parameters[place].dim() for place in order),
                groups=tuple(groups[place] for place in order),
                depths=tuple(facts[place][2] for place in order),
            )
        )
        columns = [0] * len(parameters)
        for column, place in enumerate(order):
            columns[place] = column
        return columns

    def _owners(self) -> dict[int, tuple[str, str, int]]:
        """Name, kind of module and depth by the identity of the parameter."""
        found: dict[int, tuple[str, str, int]] = {}
        for model in self._watch.objects.models():
            root: nn.Module | None = model.module
            for name, module in root.named_modules() if root is not None else ():
                depth = self._watch.objects.order.of(module)
                for own, parameter in module._parameters.items():
                    if parameter is not None:
                        whole = f"{name}.{own}" if name else own
                        found.setdefault(id(parameter), (whole, type(module).__name__, depth))
        return found
