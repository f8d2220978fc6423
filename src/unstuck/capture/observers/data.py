"""Observes the data: batches as a DataLoader gave them, as a model received them, as its first layer did.

Also what loaders are made of, how often they are gone through, and whether passes repeat each other.

Nothing is drawn from an iterator: what the program draws is looked at on its way.
"""

from __future__ import annotations

import math
import random
import sys
import weakref
from collections.abc import Iterator
from time import perf_counter
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset, WeightedRandomSampler

from unstuck.capture.detect.batched_graphs import graphs_in
from unstuck.capture.detect.stored_data import changed, samples_of
from unstuck.capture.measure.tensors import counted, is_plain, is_whole, may_measure, reading
from unstuck.capture.preview.calls import Call
from unstuck.capture.preview.first_batch import FirstBatch
from unstuck.capture.preview.repeated_batches import RepeatedBatches
from unstuck.capture.torch_hooks.internals import LoaderIterator
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Ended, Observer, Watch
from unstuck.events import BatchSeen, GraphsBatched, InputFact, LoaderSeen, Place

if TYPE_CHECKING:
    from unstuck.capture.observers.evaluations import Evaluations

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_SAMPLE = 4096
_MOST_MODELS = 32
_LARGEST = 2**24
"""Tensors with more elements than this are not looked through."""
_MOST_ROWS = 4096
_MOST_TENSORS = 8
_PRINTED = 65536
"""So many elements from each end of a tensor go into its fingerprint."""
_MOST_COLUMNS = 4096
_LARGE = 100
_FEWEST_EXAMPLES = 8
_MOST_STILL = 32
_MOST_STILL_OF = 256
"""Columns of a table; a wider one may be an image, whose border is still."""
_MOST_OPEN = 16
_FIRST_LOOKS = 3
_LATER_LOOKS = (10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000)
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)


class Batch(NamedTuple):
    """A batch in numbers."""

    inputs: tuple[InputFact, ...]
    examples: int
    duplicates: int | None
    constant: float | None
    fingerprint: tuple[float, ...]


def looked_at(tensors: list[tuple[str, Tensor]]) -> Batch:
    """What there is to say of a batch. Its rows are those of all tensors with the first one's length together."""
    with reading():
        readable = [(name, tensor.detach()) for name, tensor in tensors if _is_readable(tensor)]
        size = next((len(tensor) for _, tensor in readable if tensor.dim() > 0), 0)
        rows = [tensor for _, tensor in readable if tensor.dim() > 0 and len(tensor) == size]
        total = sum(tensor.numel() for tensor in rows)
        known = 2 <= size <= _MOST_ROWS and 0 < total <= _LARGEST
        return Batch(
            tuple(_fact(name, tensor) for name, tensor in tensors),
            size,
            _duplicates(rows) if known else None,
            _constant(rows) if known else None,
            fingerprint_of(readable),
        )


def fingerprint_of(tensors: list[tuple[str, Tensor]]) -> tuple[float, ...]:
    """Numbers that no other batch has."""
    return tuple(number for _, tensor in tensors if _is_readable(tensor) for number in _fingerprint(tensor.detach()))


def named_tensors(value: Any, name: str = "", depth: int = 2) -> list[tuple[str, Tensor]]:
    """The tensors of a batch by their place in it: `0`, `1`, `image`, `inputs.mask`."""
    if isinstance(value, Tensor):
        return [] if value.is_nested else [(name or "batch", value)]
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    found: list[tuple[str, Tensor]] = []
    for key, part in items if depth else ():
        found += named_tensors(part, f"{name}.{key}" if name else str(key), depth - 1)
        if len(found) >= _MOST_TENSORS:
            break
    return found[:_MOST_TENSORS]


def _is_readable(tensor: Tensor) -> bool:
    return (is_plain(tensor) or is_whole(tensor)) and 0 < tensor.numel() <= _LARGEST


def _fact(name: str, tensor: Tensor) -> InputFact:
    bare = InputFact(
        name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), requires_grad=tensor.requires_grad
    )
    if not _is_readable(tensor):
        return bare
    values = tensor.detach().reshape(-1)
    values = values if values.dtype is torch.float64 else values.float()
    finite = values[torch.isfinite(values)]
    broken = 1 - finite.numel() / values.numel()
    if finite.numel() == 0:
        return InputFact(name, bare.shape, bare.dtype, requires_grad=bare.requires_grad, broken=broken)
    low, high = (float(end) for end in torch.aminmax(finite))
    sample = finite[:: -(-finite.numel() // _SAMPLE)]
    return InputFact(
        name,
        bare.shape,
        bare.dtype,
        low,
        high,
        tuple(torch.quantile(sample, sample.new_tensor(QUANTILES)).tolist()),
        bare.requires_grad,
        mean=_number(finite.mean()),
        spread=_number(finite.std(correction=0)),
        broken=broken,
        ids=counted(tensor) if is_whole(tensor) and tensor.dim() == 2 else None,
        column=_large_column(tensor.detach()) if is_plain(tensor) and tensor.dim() == 2 else None,
        still=_still_columns(tensor.detach()) if is_plain(tensor) and tensor.dim() == 2 else {},
    )


def _still_columns(table: Tensor) -> dict[int, float]:
    if len(table) < _FEWEST_EXAMPLES or not 2 <= table.shape[1] <= _MOST_STILL_OF:
        return {}
    same = (table == table[:1]).all(0).nonzero().flatten().tolist()
    return {column: float(table[0, column]) for column in same[:_MOST_STILL]} if len(same) < table.shape[1] else {}


def _large_column(table: Tensor) -> tuple[int, float, float] | None:
    if not 2 <= table.shape[1] <= _MOST_COLUMNS:
        return None
    sizes = table[:_MOST_ROWS].float().square().mean(0).sqrt()
    usual, place = float(sizes.median()), int(sizes.argmax())
    largest = float(sizes[place])
    return (place, largest, usual) if math.isfinite(largest) and largest > _LARGE * usual > 0 else None


def _number(scalar: Tensor) -> float | None:
    value = float(scalar)
    return value if math.isfinite(value) else None


def _duplicates(tensors: list[Tensor]) -> int:
    """How many rows equal another one. Rows that differ have different weighted sums, equal ones compared."""
    marks = torch.stack([marks_of(tensor) for tensor in tensors]).sum(0).nan_to_num()
    order = marks.argsort()
    alike = marks[order][1:] == marks[order][:-1]
    pairs = [(int(order[i]), int(order[i + 1])) for i in alike.nonzero().flatten().tolist()]
    equal = {row for pair in pairs if all(torch.equal(t[pair[0]], t[pair[1]]) for t in tensors) for row in pair}
    return len(equal)


def marks_of(tensor: Tensor) -> Tensor:
    """A number for each row, which no other row has."""
    rows = tensor.reshape(len(tensor), -1)
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device).sqrt()
    return rows.double() @ weights


def _constant(tensors: list[Tensor]) -> float:
    """The share of features that are the same in all rows."""
    same = [(tensor == tensor[:1]).reshape(len(tensor), -1).all(0) for tensor in tensors]
    return sum(int(part.sum()) for part in same) / sum(part.numel() for part in same)


def _fingerprint(tensor: Tensor) -> tuple[float, ...]:
    flat = tensor.reshape(-1)
    if flat.numel() > 2 * _PRINTED:
        flat = torch.cat([flat[:_PRINTED], flat[-_PRINTED:]])
    flat = flat.double().nan_to_num()
    weights = torch.arange(1, flat.numel() + 1, dtype=torch.float64, device=flat.device).sqrt()
    return (float(tensor.numel()), float(flat.sum()), float(flat @ weights))


class Batches(Observer):
    """Records a few times in a run what each model received in training, and what reached its first layer."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._seen: dict[str, int] = {}
        self._root: nn.Module | None = None
        self._first: tuple[nn.Module, InputFact | None] | None = None
        self._call: Call | None = None
        """That of the root."""
        self._inside: list[tuple[str, Tensor, Tensor]] = []
        """What losses inside of it were given."""
        self._open: list[Call] = []
        """Calls that a loss may still be about."""
        self._first_batch = FirstBatch(watch)
        self._repeated = RepeatedBatches(watch)
        protect = watch.guard.protect
        self._draw = protect("what the model receives", self._first_batch.draw)
        self._returned = protect("what the model predicts", self._has_returned)
        self._compare = protect("what losses are given", self._compared)
        self._settle = protect("what the model predicts", self._has_settled)
        self._tell_shown = protect("what the model receives", self._first_batch.window_ended)
        self._tell_last = protect("what the model receives", self._first_batch.finish)

    def begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A model is called in a sampled window."""
        self._root, self._first, self._call = None, None, None
        self._inside.clear()
        if not module.training or not torch.is_grad_enabled() or not has_weights(module) or not may_measure():
            return
        label = self._watch.objects.model(module).label
        if label not in self._seen and len(self._seen) >= _MOST_MODELS:
            return
        count = self._seen[label] = self._seen.get(label, 0) + 1
        if count <= _FIRST_LOOKS or count in _LATER_LOOKS:
            self._root = module
            self._call = Call(label, self._watch.window.steps, learning=True, training=True)
            if self._first_batch.wants(label):
                self._draw(self._call, module, arguments_of(module, (args,)))
            self.entered(module, args)

    def entered(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """A module is called inside a model; the first one with weights of its own is looked at."""
        if self._root is None or self._first is not None or not isinstance(module._modules, dict) or module._modules:
            return
        if all(parameter is None for parameter in module._parameters.values()):
            return
        given = args[0] if args and isinstance(module, _WEIGHTED) else None
        with reading():
            self._first = module, _fact("input", given) if isinstance(given, Tensor) and is_plain(given) else None

    def ended(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """The model returned; `arguments` are what it was given, by position and by name."""
        if self._root is not module:
            return
        first, call = self._first, self._call
        self._root, self._first, self._call = None, None, None
        tensors = arguments_of(module, arguments)
        if not tensors:
            self._inside.clear()
            return
        watch, label = self._watch, self._watch.objects.model(module).label
        if call is not None and self._first_batch.wants(label):
            self._draw(call, module, arguments_of(module, ((), *arguments[1:])), more=True)
        batch = looked_at(tensors)
        if call is not None and output is not None:
            self._returned(call, batch.fingerprint, output)
        self._inside.clear()
        step = watch.window.steps
        watch.tell(
            BatchSeen(
                step=step,
                place=watch.places.here(),
                model=label,
                inputs=batch.inputs,
                duplicates=batch.duplicates,
                constant=batch.constant,
                examples=batch.examples,
                layer=_name_in(module, first[0]) if first else "",
                layer_kind=type(first[0]).__name__ if first else "",
                layer_input=first[1] if first else None,
            )
        )
        graphs = graphs_in(tensors)
        if graphs is not None:
            watch.tell(GraphsBatched(step=step, place=watch.places.here(), model=label, **graphs._asdict()))

    def evaluated(self, module: nn.Module, label: str, arguments: tuple[Any, ...], output: Any) -> None:
        """A stretch of evaluation begins with this call."""
        if may_measure() and output is not None:
            with reading():
                fingerprint = fingerprint_of(arguments_of(module, arguments))
            call = Call(label, self._watch.window.steps, learning=False, training=module.training)
            self._returned(call, fingerprint, output)

    def _has_returned(self, call: Call, fingerprint: tuple[float, ...], output: Any) -> None:
        if call.learning:
            self._first_batch.returned(call)
        call.returned(output)
        for given in self._inside:
            call.compare(*given)
        self._inside.clear()
        self._repeated.add(call, fingerprint)
        if len(self._open) < _MOST_OPEN:
            self._open.append(call)

    def compared(self, loss: str, source: Tensor, target: Tensor) -> None:
        """A loss was given these."""
        if self._call is not None or self._open:
            self._compare(loss, source, target)

    def _compared(self, loss: str, source: Tensor, target: Tensor) -> None:
        if not may_measure() or not (is_plain(source) and (is_plain(target) or is_whole(target))):
            return
        if self._call is not None:
            self._inside.append((loss, source, target))
            return
        for call in reversed(self._open):
            if call.compare(loss, source, target):
                return

    def settle(self) -> None:
        """An evaluation ended: losses from now on are not about its batch."""
        if self._open:
            self._settle()

    def _has_settled(self) -> None:
        calls, self._open = self._open, []
        for call in calls:
            call.settle()
        self._repeated.settle()

    def window_began(self, ended: Ended) -> None:
        """No loss of this window is about a batch of the last."""
        if ended.recorded:
            self.settle()
            if self._first_batch.pending:
                self._tell_shown()

    def finish(self) -> None:
        """The run ended."""
        self.settle()
        self._tell_last()


def has_weights(module: nn.Module) -> bool:
    """Is it more than a transform of the data, which may be a module too?"""
    return next(module.parameters(), None) is not None


def arguments_of(module: nn.Module, arguments: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
    """The tensors among the arguments, by the names that `forward` gives them."""
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    names = code.co_varnames[1 : code.co_argcount] if code is not None else ()
    given: dict[str, Any] = {}
    for index, value in enumerate(arguments[0]):
        given[names[index] if index < len(names) else str(index)] = value
    for part in arguments[1:]:
        given.update(part if isinstance(part, dict) else {})
    return named_tensors(given)


def _name_in(root: nn.Module, layer: nn.Module) -> str:
    return next((name for name, module in root.named_modules() if module is layer), "")


_MOST_LOADERS = 32
_MOST_PASSES = 6
"""Of so many passes the first batch is looked at."""
_FIRST_BATCHES = 3
"""So many batches of the first pass are looked at."""
_SEEDING = frozenset({"seed", "manual_seed"})


class _Source:
    """The loaders built at one line for one data set: many programs build new ones for every epoch."""

    def __init__(self, label: str, place: Place | None) -> None:
        self.label = label
        self.place = place
        self.passes = 0
        self.looks = 0
        self.trained = False
        self.first: tuple[float, ...] = ()
        self.same_start = 0
        self.waited = 0.0
        """Seconds, for batches that no backward has followed yet."""
        self.at_start = False
        self.epochs: set[int] = set()
        self.last: LoaderSeen | None = None
        """As it was at the beginning of its last pass."""
        self.recorded: LoaderSeen | None = None
        self.stored: dict[str, Tensor] = {}
        """Some numbers of the data set, as they were when its pass began."""
        self.overwritten = ""
        self.overwritten_passes = 0


class Loaders(Observer):
    """Follows every DataLoader from its construction through its passes."""

    def __init__(self, watch: Watch, evaluations: Evaluations) -> None:
        self._watch = watch
        self._evaluations = evaluations
        self._built: dict[int, tuple[weakref.ref[Any], Place | None]] = {}
        self._sources: dict[tuple[Any, ...], _Source] = {}
        self._iterators: dict[int, tuple[weakref.ref[Any], _Source, weakref.ref[Any]]] = {}
        self._drawn: _Source | None = None
        """Whose batch the program drew last."""

    def attach(self, patches: Patches) -> None:
        """Watch the class, so that nothing is written onto loaders."""
        patches.around(DataLoader, "__init__", self._building, self._was_built)
        patches.around(DataLoader, "__iter__", self._beginning, self._began)
        if LoaderIterator is not None:
            patches.around(LoaderIterator, "__next__", self._drawing, self._drew)

    def backward(self) -> None:
        """A backward begins: the loader drawn from last is one to train on."""
        source = self._drawn
        if source is None:
            return
        self._watch.window.timings.data += source.waited  # what an evaluation waits for is no part of a step
        source.waited = 0.0
        if not source.trained:
            source.trained = True
            self._tell(source)

    def finish(self) -> None:
        """The run ended."""
        for source in self._sources.values():
            self._tell(source)

    def _building(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (args[0], self._watch.places.here()) if self._watch.is_listening() else None

    def _was_built(self, built: tuple[Any, Place | None], result: Any, error: BaseException | None) -> None:
        loader, place = built
        if error is None:
            self._built = {key: known for key, known in self._built.items() if known[0]() is not None}
            self._built[id(loader)] = (weakref.ref(loader), place)

    def _beginning(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if self._watch.is_listening() else None

    def _began(self, loader: Any, iterator: Any, error: BaseException | None) -> None:
        source = self._source(loader) if error is None else None
        if source is None:
            return
        self._iterators = {key: known for key, known in self._iterators.items() if known[0]() is not None}
        self._iterators[id(iterator)] = (weakref.ref(iterator), source, weakref.ref(loader))
        source.passes += 1
        source.at_start = True
        source.looks = _FIRST_BATCHES if source.passes == 1 else int(source.passes <= _MOST_PASSES)
        source.last = self._seen(source, loader)
        source.stored = {}
        if source.passes <= _MOST_PASSES and loader.num_workers == 0 and may_measure():
            with reading():
                source.stored = samples_of(loader.dataset)
        if not source.trained:
            self._evaluations.expected()
        if source.passes in (1, 3):
            self._tell(source)

    def _source(self, loader: Any) -> _Source | None:
        built = self._built.get(id(loader))
        place = built[1] if built is not None and built[0]() is loader else None
        dataset = getattr(loader, "dataset", None)
        key = (place, id(dataset), type(loader.sampler).__name__) if place else (id(loader),)
        if key not in self._sources:
            if len(self._sources) >= _MOST_LOADERS:
                return None
            count = len(self._sources) + 1
            label = type(loader).__name__ + (f"#{count}" if count > 1 else "")
            self._sources[key] = _Source(label, place or self._watch.places.here())
        return self._sources[key]

    def _drawing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Source, float] | None:
        known = self._iterators.get(id(args[0]))
        if known is None or known[0]() is not args[0]:
            return None
        self._drawn = source = known[1]
        wanted = source.looks > 0 or self._watch.window.sampled or self._watch.window.attentive
        return (source, perf_counter()) if wanted else None

    def _drew(self, drawing: tuple[_Source, float], batch: Any, error: BaseException | None) -> None:
        source, began = drawing
        source.waited += perf_counter() - began
        if source.stored:
            self._compare_stored(source)
        if error is None:
            self._evaluations.drew(named_tensors(batch), source.trained)
        if source.looks <= 0:
            return
        source.looks -= 1
        if error is not None or not may_measure():
            source.looks = 0
            return
        tensors = [(name, tensor) for name, tensor in named_tensors(batch) if tensor.device.type == "cpu"]
        found = looked_at(tensors) if tensors else None
        if found is None or not found.fingerprint:
            return
        step = self._watch.window.steps
        same = source.at_start and source.passes > 1 and found.fingerprint == source.first
        if source.at_start and source.passes == 1:
            source.first = found.fingerprint
        source.at_start = False
        source.same_start += same
        self._watch.tell(
            BatchSeen(
                step=step,
                place=source.place,
                loader=source.label,
                inputs=found.inputs,
                duplicates=found.duplicates,
                constant=found.constant,
                examples=found.examples,
            )
        )

    def _compare_stored(self, source: _Source) -> None:
        """The first batch of a pass was drawn, and nothing else happened since: has reading examples changed them?"""
        before, source.stored = source.stored, {}
        loader = next((known[2]() for known in self._iterators.values() if known[1] is source), None)
        if loader is not None and may_measure():
            with reading():
                name = changed(before, samples_of(loader.dataset))
            source.overwritten = name or source.overwritten
            source.overwritten_passes += bool(name)
            if name and source.passes > 1:
                self._tell(source)

    def _tell(self, source: _Source) -> None:
        """Record a loader as it is known now, unless that has been recorded."""
        if source.last is None:
            return
        now = msgspec.structs.replace(
            source.last,
            trained=source.trained,
            same_start=source.same_start,
            overwritten=source.overwritten,
            overwritten_passes=source.overwritten_passes,
        )
        if now != source.recorded:
            source.recorded = now
            self._watch.tell(now)

    def _seen(self, source: _Source, loader: Any) -> LoaderSeen:
        dataset = loader.dataset.dataset if isinstance(loader.dataset, Subset) else loader.dataset
        known, sampler = source.last, loader.sampler
        return LoaderSeen(
            step=self._watch.window.steps,
            place=source.place,
            loader=source.label,
            dataset=type(loader.dataset).__name__,
            length=_length(loader.dataset),
            batch_size=loader.batch_size if isinstance(loader.batch_size, int) else None,
            sampler=type(loader.sampler).__name__,
            workers=loader.num_workers,
            drop_last=bool(loader.drop_last),
            passes=source.passes,
            weights=len(sampler.weights) if isinstance(sampler, WeightedRandomSampler) else None,
            draws=sampler.num_samples if isinstance(sampler, WeightedRandomSampler) else None,
            generators=tuple(_copied_generators(loader, dataset, source.passes)),
            seeded_alike=known.seeded_alike if known else self._where(_seeded_alike(loader)),
            seeded_again=known.seeded_again if known else self._where(_seeded_again(dataset)),
        )

    def _where(self, found: tuple[str, int, int] | None) -> Place | None:
        return self._watch.places.of_file(*found) if found is not None else None


def _length(dataset: Any) -> int | None:
    """Of the data sets of torch only: the length of another may be expensive to ask for, as that of a chain of them."""
    known = type(dataset).__module__.startswith(("torch.", "torchvision."))
    if not known or isinstance(dataset, IterableDataset):
        return None
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _copied_generators(loader: Any, dataset: Any, passes: int) -> Iterator[str]:
    """Generators of the data set that `__getitem__` draws from, and of which each worker has a copy."""
    again = not loader.persistent_workers and passes > 1
    if not (loader.num_workers > 1 or (loader.num_workers == 1 and again)) or loader.worker_init_fn is not None:
        return
    draws = _code(getattr(type(dataset), "__getitem__", None))
    names = draws.co_names if draws is not None else ()
    if "get_worker_info" in names or "seed" in names:
        return
    for name, value in getattr(dataset, "__dict__", {}).items():
        if name in names and isinstance(value, _generator_kinds()):
            yield name


def _seeded_alike(loader: Any) -> tuple[str, int, int] | None:
    """Where `worker_init_fn` seeds with a number, and with nothing that differs between workers."""
    code = _code(loader.worker_init_fn) if loader.num_workers > 1 else None
    if code is None or {"initial_seed", "get_worker_info"}.intersection(code.co_names):
        return None
    return _constant_seed(code, only=True)


def _seeded_again(dataset: Any) -> tuple[str, int, int] | None:
    code = _code(getattr(type(dataset), "__getitem__", None))
    return _constant_seed(code) if code is not None else None


def _code(function: Any) -> CodeType | None:
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _constant_seed(code: CodeType, only: bool = False) -> tuple[str, int, int] | None:
    """File, line and column of `seed(7)` or `manual_seed(7)`; `only` if there is no other seeding in it."""
    if not _SEEDING.intersection(code.co_names):
        return None
    import dis

    steps = [step for step in dis.get_instructions(code) if step.opname not in ("PUSH_NULL", "PRECALL", "CACHE")]
    found = []
    for seed, given, call in zip(steps, steps[1:], steps[2:], strict=False):
        if seed.argval in _SEEDING:
            constant = given.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and isinstance(given.argval, int)
            found.append(seed if constant and call.opname.startswith("CALL") else None)
    certain = [step for step in found if step is not None]
    if not certain or (only and len(certain) < len(found)):
        return None
    spot = certain[0].positions
    return (code.co_filename, spot.lineno or 0, (spot.col_offset or 0) + 1) if spot is not None else None


def _generator_kinds() -> tuple[type, ...]:
    numpy = sys.modules.get("numpy.random")
    return (random.Random, torch.Generator, *((numpy.RandomState, numpy.Generator) if numpy is not None else ()))
