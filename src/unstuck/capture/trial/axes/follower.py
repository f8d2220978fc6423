"""Carries out each operation of one iteration several times, with other examples in the batch each time.

An element that changes with two groups of examples depends on more than one example. The first operation whose result
has such elements, while what it was given had none, is where examples meet. Sums and means over the batch are meant to
do that, as are batch norms: what they return counts as a constant.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unstuck.capture.places import Places
from unstuck.capture.torch_hooks.hooks import OperationCalls
from unstuck.capture.trial.axes import shadows
from unstuck.capture.trial.axes.shadows import Shadow, Shadows
from unstuck.events import Place
from unstuck.findings.mixing import Mix, Mixing

MOST_BYTES = 2**30
MOST_FOUND = 20
REDUCES = frozenset(
    """sum mean std var std_mean var_mean max min amax amin aminmax argmax argmin prod norm linalg_vector_norm logsumexp
    all any median nanmedian mode quantile nll_loss nll_loss_forward nll_loss2d_forward mse_loss binary_cross_entropy
    smooth_l1_loss huber_loss count_nonzero dot cumsum cumprod logcumsumexp cummax cummin sort topk argsort kthvalue
    bincount histc unique2 _unique2 unique_dim scatter_add scatter_reduce index_add index_reduce scatter_add_ index_add_
    scatter_reduce_ _ctc_loss trace nonzero segment_reduce embedding_bag _embedding_bag corrcoef cov""".split()
)
"""What runs over an axis on purpose."""
SOFTMAXES = frozenset({"_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax"})
RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "_reshape_alias", "unflatten", "unfold", "as_strided"})
ADDS_AN_AXIS = frozenset({"unsqueeze", *RESHAPES})
BATCH_NORMS = frozenset({"native_batch_norm", "_native_batch_norm_legit", "batch_norm_with_update"})
PAIRS_ONLY = frozenset({"triu", "tril", "diagonal", "diagonal_copy", "fill_diagonal_", "masked_select", "argsort"})
"""What is done with a matrix of all pairs that is meant."""
CONSTANTS = frozenset("arange linspace eye zeros ones full empty randperm tril_indices triu_indices".split())


class Follower(OperationCalls):
    """Follows examples through one iteration; `found` has what mixes them, in the order in which it happened."""

    def __init__(self, examples: int, axis: int, places: Places, is_constant: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.examples = examples
        self.axis = axis
        self.found: list[Mixing] = []
        self.inside = 0
        """How many models are being called."""
        self.is_silent = 0
        """In layers about which all is said."""
        self.draws_all = axis == 0
        """Are other tensors with one row for each example data too?"""
        self.are_drawn = False
        """Does a loader draw the examples in random order?"""
        self._groups = shadows.in_groups(examples)
        self._shadows = Shadows(MOST_BYTES)
        self._places = places
        self._is_constant = is_constant
        self._is_ours = False
        """Is it us who compute something?"""
        self._process = os.getpid()
        self._state: dict[int, tuple[Any, int]] = {}
        """Memory of weights, buffers and tables, and how many numbers it has."""
        self._random: dict[int, Any] = {}
        """Memory of what was drawn at random."""
        self._columns: dict[tuple[Any, ...], Place | None] = {}
        self._scrambled: dict[tuple[Any, ...], Mixing] = {}
        self._withdrawn: set[int] = set()
        self._candidates: dict[int, tuple[int, ...]] = {}

    def results(self) -> list[Mixing]:
        """What was found and not withdrawn since."""
        return [one for index, one in enumerate(self.found) if index not in self._withdrawn]

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is computed meanwhile is not part of the iteration."""
        before, self._is_ours = self._is_ours, True
        try:
            yield
        finally:
            self._is_ours = before

    def seed(self, tensor: Any, axis: int | None = None) -> None:
        """From here on, each index along this axis of the tensor is an example."""
        with self.aside(), torch.no_grad():
            self._seed(tensor, axis)

    def _seed(self, tensor: Any, axis: int | None) -> None:
        axis = self.axis if axis is None else axis
        if not isinstance(tensor, Tensor) or type(tensor) is not Tensor or tensor.layout is not torch.strided:
            return
        if tensor.dim() <= axis or tensor.shape[axis] != self.examples or tensor.is_meta:
            return
        size = tensor.numel() * tensor.element_size() * len(self._groups)
        if self._shadows.of(tensor) is not None or size > self._shadows.room:
            return
        versions = list(shadows.exchanged(tensor.detach(), axis, self._groups))
        if any(bool((version != tensor).any()) for version in versions):
            self._shadows.add(tensor.detach(), versions)

    def keeps(self, tensors: Sequence[Tensor], size: int = 0) -> None:
        """These are weights or tables, or come from tables of so many numbers."""
        for tensor in tensors:
            if tensor.layout is torch.strided and tensor.numel() and not tensor.is_meta:
                known = (tensor.untyped_storage(), max(size, tensor.numel()))
                self._state.setdefault(shadows.address(tensor), known)

    def axes_of(self, tensor: Tensor) -> list[int] | None:
        """On which axes the examples of a tensor are apart; None if that is not known."""
        with self.aside(), torch.no_grad():
            changes = self._shadows.changes(tensor)
            return shadows.example_axes(changes) if changes else None

    def is_mixed(self, tensor: Tensor) -> bool:
        """Does a number of it depend on several examples?"""
        shadow = self._shadows.of(tensor)
        return shadow is not None and shadow.is_mixed

    # Carrying out an operation.

    def called(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry it out, and with it its shadows."""
        if self._is_ours or os.getpid() != self._process or self._shadows.room <= 0:
            return operation(*args, **kwargs)
        name = str(operation.overloadpacket.__name__)
        given = list(_tensors(args, kwargs))
        if self.draws_all and not self.inside:
            for tensor in given:
                self._draw(tensor)
        tainted = [tensor for tensor in given if self._shadows.of(tensor) is not None]
        if not tainted or "empty" in name:
            result = operation(*args, **kwargs)
            self._follow_constants(name, operation, given, result)
            return result
        return self._with_shadows(name, operation, args, kwargs, given, tainted)

    def _draw(self, tensor: Tensor) -> None:
        """Data that reach the iteration from outside, with one row for each example."""
        if tensor.dim() and tensor.shape[0] == self.examples and not tensor.requires_grad:
            known = shadows.address(tensor) in self._state or self._is_constant(tensor)
            if not known and self._shadows.of(tensor) is None:
                self.seed(tensor)
                shadow = self._shadows.of(tensor)
                if shadow is not None:
                    shadow.is_doubtful = tensor.dim() == 1 and shadows.address(tensor) not in self._random

    def _follow_constants(self, name: str, operation: Any, given: list[Tensor], result: Any) -> None:
        made = list(_tensors((result,), {}))
        random = torch.Tag.nondeterministic_seeded in operation.tags
        if name in CONSTANTS:
            self.keeps(made)
        elif random:
            self._random |= {shadows.address(tensor): tensor.untyped_storage() for tensor in made if tensor.numel()}
        elif given:
            sizes = [self._size_of_state(tensor) for tensor in given]
            if None not in sizes:
                self.keeps(made, max(size or 0 for size in sizes))

    def _size_of_state(self, tensor: Tensor) -> int | None:
        """How many numbers the table has that this comes from; None if it is not a constant."""
        known = self._state.get(shadows.address(tensor))
        if known is not None:
            return known[1]
        return tensor.numel() if self._is_constant(tensor) else None

    def _with_shadows(
        self,
        name: str,
        operation: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[Tensor],
        tainted: list[Tensor],
    ) -> Any:
        written = _written(operation, args, kwargs)
        for tensor in written:
            if self._shadows.of(tensor) is None:
                self._shadows.add(tensor, [tensor] * len(self._groups))
        was_mixed = any(self.is_mixed(tensor) for tensor in tainted)
        before = [(tuple(tensor.shape), self.axes_of(tensor)) for tensor in tainted] if name in RESHAPES else []
        random = torch.Tag.nondeterministic_seeded in operation.tags
        state = torch.get_rng_state() if random else None
        inputs = [self._swapped(group, args, kwargs, False) for group in range(len(self._groups))]
        safe = [self._swapped(group, args, kwargs, True) for group in range(len(self._groups))]
        result = operation(*args, **kwargs)
        after = torch.get_rng_state() if random else None
        made = list(_tensors((result,), {}))
        own = {shadows.address(tensor) for tensor in (*given, *written)}
        is_view = not written and all(shadows.address(tensor) in own for tensor in made if tensor.numel())
        if not is_view:
            if name in BATCH_NORMS and _is_training(args):
                outputs = [_normalised(one, made) for one, _ in inputs]
            else:
                outputs = _again(operation, inputs, state) or ([] if written else _again(operation, safe, state))
            if after is not None:
                torch.set_rng_state(after)
            is_doubtful = all(shadow.is_doubtful for t in tainted if (shadow := self._shadows.of(t)))
            births = frozenset().union(*(shadow.births for t in tainted if (shadow := self._shadows.of(t))))
            self._note(name, operation, args, tainted, made, written, outputs, was_mixed, births)
            for shadow in (self._shadows.of(tensor) for tensor in made if is_doubtful):
                if shadow is not None:
                    shadow.is_doubtful = True
        self._follow_views(name, given, tainted, made, before)
        self._look_for_codes(name, operation, given, tainted, made)
        return result

    def _swapped(
        self, group: int, args: tuple[Any, ...], kwargs: dict[str, Any], floats_only: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def version(tensor: Tensor) -> Tensor:
            if floats_only and not tensor.is_floating_point():
                return tensor
            found = self._shadows.versions(tensor)
            return found[group] if found else tensor

        return tuple(_mapped(arg, version) for arg in args), {k: _mapped(v, version) for k, v in kwargs.items()}

    def _note(
        self,
        name: str,
        operation: Any,
        args: tuple[Any, ...],
        tainted: list[Tensor],
        made: list[Tensor],
        written: list[Tensor],
        outputs: list[Any],
        was_mixed: bool,
        births: frozenset[int],
    ) -> None:
        """Give the results their shadows, and see whether examples met in this operation."""
        if not outputs:  # shapes that depend on the numbers, or something that cannot be repeated
            for tensor in written:
                self._shadows.forget(tensor)
            return
        self._withdraw(name, operation, args, births)
        every = [list(_tensors((output,), {})) for output in outputs]
        is_new = False
        fresh: list[Shadow] = []
        for index, tensor in enumerate(made):
            versions = [one[index] for one in every if index < len(one) and one[index].shape == tensor.shape]
            if len(versions) < len(every) or not tensor.numel() or tensor.layout is not torch.strided:
                continue
            shadow = self._shadows.of(tensor) if any(tensor is one for one in written) else None
            changes = [shadows.differs(tensor, version) for version in versions]
            if shadow is None and not any(bool(change.any()) for change in changes):
                continue
            mixed = shadows.is_mixed(changes)
            if mixed and not was_mixed and name in REDUCES:
                continue
            is_new |= mixed and not was_mixed
            shadow = shadow or self._shadows.add(tensor, versions)
            shadow.is_mixed = mixed or was_mixed
            shadow.births |= births
            fresh.append(shadow)
        for tensor in written:
            shadow = self._shadows.of(tensor)
            if shadow is not None and not any(tensor is one for one in made):
                shadow.is_mixed |= was_mixed or shadows.is_mixed(self._shadows.changes(tensor))
                is_new |= shadow.is_mixed and not was_mixed
                shadow.births |= births
        if is_new and not self.is_silent and len(self.found) < MOST_FOUND:
            found = self._named(name, operation, args, tainted, made)
            number = len(self.found)
            self.found.append(found)
            if found.mix is Mix.COLUMN:
                self._candidates[number] = found.result
            for shadow in fresh:
                shadow.births |= {number}

    # What kind of mixture it is.

    def _named(
        self, name: str, operation: Any, args: tuple[Any, ...], tainted: list[Tensor], made: list[Tensor]
    ) -> Mixing:
        place = self._places.here()
        result = tuple(made[0].shape) if made else ()
        plain = Mixing(
            mix=Mix.OTHER,
            operation=name.strip("_"),
            examples=self.examples,
            shapes=tuple(tuple(tensor.shape) for tensor in tainted[:2]),
            result=result,
            inside=self.inside > 0,
            place=place,
        )
        scrambled = [self._scrambled[_key(tensor)] for tensor in tainted if _key(tensor) in self._scrambled]
        if scrambled:
            return scrambled[0]
        if torch.Tag.pointwise in operation.tags:
            return self._broadcast(plain, tainted) or plain
        if name in SOFTMAXES:
            return self._softmax(plain, args) or plain
        if name in ("index", "index_select"):
            return self._picked(plain, args) or plain
        return plain

    def _broadcast(self, plain: Mixing, tainted: list[Tensor]) -> Mixing | None:
        """Two tensors of different rank whose examples lie on different axes of the result."""
        for first, one in enumerate(tainted):
            for other in tainted[first + 1 :]:
                high, low = (one, other) if one.dim() > other.dim() else (other, one)
                if high.dim() == low.dim() or shadows.address(high) == shadows.address(low):
                    continue
                axes = [self._example_axis(high), self._example_axis(low)]
                if axes[0] is None or axes[1] is None or high.dim() - axes[0] == low.dim() - axes[1]:
                    continue
                if self._is_explicit(high, low, plain.place):
                    return None
                shapes = (tuple(high.shape), tuple(low.shape))
                mix = Mix.COLUMN if shapes[0] == (*shapes[1], 1) and low.dim() == 1 else Mix.COEFFICIENT
                shadow = self._shadows.of(low)
                if mix is Mix.COEFFICIENT and (shadow is None or shadow.is_doubtful):
                    continue
                return _like(plain, mix=mix, shapes=shapes, axis=axes[0])
        return None

    def _example_axis(self, tensor: Tensor) -> int | None:
        axes = [axis for axis in self.axes_of(tensor) or () if tensor.shape[axis] == self.examples]
        return axes[0] if len(axes) == 1 else None

    def _is_explicit(self, high: Tensor, low: Tensor, place: Place | None) -> bool:
        """Was the axis that broadcasts added for that?"""
        if _key(high) not in self._columns:
            return False
        added = self._columns[_key(high)]
        here = place is not None and added is not None and (added.path, added.line) == (place.path, place.line)
        return low.dim() > 1 or here

    def _softmax(self, plain: Mixing, args: tuple[Any, ...]) -> Mixing | None:
        scores = next((arg for arg in args if isinstance(arg, Tensor)), None)
        dim = next((arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)), None)
        if scores is None or dim is None or scores.dim() < 2:
            return None
        axes = self.axes_of(scores) or []
        axis = dim % scores.dim()
        others = [size for other, size in enumerate(scores.shape) if other != axis]
        if axis not in axes or scores.shape[axis] != self.examples or max(others) < 2:
            return None
        return _like(plain, mix=Mix.SOFTMAX, shapes=(tuple(scores.shape),), axis=axis)

    def _picked(self, plain: Mixing, args: tuple[Any, ...]) -> Mixing | None:
        """`scores[:, y]`, with an index for each example, and all examples kept."""
        scores = args[0]
        axis = self._example_axis(scores) if isinstance(scores, Tensor) else None
        indices = args[1] if isinstance(args[1], list | tuple) else [None] * (args[1] % scores.dim()) + [args[2]]
        used = [(at, index) for at, index in enumerate(indices) if isinstance(index, Tensor)]
        if axis is None or len(used) != 1 or used[0][0] == axis:
            return None
        index = used[0][1]
        if index.dim() != 1 or len(index) != self.examples or self._shadows.of(index) is None:
            return None
        return _like(plain, mix=Mix.PICK, shapes=(tuple(scores.shape), tuple(index.shape)), axis=axis)

    def _withdraw(self, name: str, operation: Any, args: tuple[Any, ...], births: frozenset[int]) -> None:
        """A matrix of all pairs that meets another one was meant to be one."""
        for number in births & self._candidates.keys():
            shape = self._candidates[number]
            others = [
                tensor
                for tensor in _tensors(args, {})
                if tuple(tensor.shape) == shape
                and not ((shadow := self._shadows.of(tensor)) is not None and number in shadow.births)
            ]
            meets = torch.Tag.pointwise in operation.tags or name in ("index", "masked_select", "mm", "matmul")
            if (others and meets) or name in PAIRS_ONLY:
                self._withdrawn.add(number)

    # Views: axes that are added, and rows that are no longer those of one example.

    def _follow_views(
        self,
        name: str,
        given: list[Tensor],
        tainted: list[Tensor],
        made: list[Tensor],
        before: list[tuple[tuple[int, ...], list[int] | None]],
    ) -> None:
        if len(made) != 1:
            return
        made_one = made[0]
        if name in ADDS_AN_AXIS and given and made_one.dim() > given[0].dim():
            self._columns[_key(made_one)] = self._places.here()
        axes: list[int] | None = None
        if before and before[0][1] and not self.is_mixed(made_one):
            axes = self.axes_of(made_one)
            rows = made_one.dim() > 1 and made_one.shape[0] == self.examples
            if axes == [] and rows and before[0][0] != tuple(made_one.shape) and not self.is_silent:
                self._scrambled[_key(made_one)] = Mixing(
                    mix=Mix.ROWS,
                    operation=name.strip("_"),
                    examples=self.examples,
                    shapes=(before[0][0],),
                    result=tuple(made_one.shape),
                    axis=before[0][1][0],
                    inside=self.inside > 0,
                    place=self._places.here(),
                )
                return
        known = next((self._scrambled[_key(tensor)] for tensor in tainted if _key(tensor) in self._scrambled), None)
        if known is not None and not self.is_mixed(made_one) and self.axes_of(made_one) == []:
            self._scrambled[_key(made_one)] = known

    def _look_for_codes(
        self, name: str, operation: Any, given: list[Tensor], tainted: list[Tensor], made: list[Tensor]
    ) -> None:
        """A part of a table is added along the axis of the examples, the same for all positions."""
        if name not in ("add", "add_", "mul") or len(given) != 2 or len(tainted) != 1 or self.is_silent:
            return
        data = tainted[0]
        code = given[0] if given[1] is data else given[1]
        axis = self._example_axis(data)
        kept = self._state.get(shadows.address(code))
        if axis is None or kept is None or data.dim() < 3 or code.dim() < 2:
            return
        at = axis - data.dim() + code.dim()
        if at < 0 or code.shape[at] != self.examples:
            return
        others = [
            side
            for side, size in enumerate(data.shape[:-1])
            if side != axis and size > 1 and (side - data.dim() + code.dim() < 0 or _side(code, side, data) == 1)
        ]
        is_part = kept[1] > code.numel()
        varies = bool((code != code.narrow(at, 0, 1)).any())
        if others and is_part and varies and all(one.mix is not Mix.CODES for one in self.found):
            self.found.append(
                Mixing(
                    mix=Mix.CODES,
                    operation=name.strip("_"),
                    examples=self.examples,
                    shapes=(tuple(data.shape), tuple(code.shape)),
                    result=tuple(made[0].shape),
                    axis=axis,
                    inside=self.inside > 0,
                    place=self._places.here(),
                )
            )

    # Layers of torch that have a convention of their own.

    def sequence_layer(self, name: str, module: nn.Module, given: Any) -> bool:
        """Does this layer take the examples for positions? Noted if so."""
        given = given if isinstance(given, Tensor) else None
        first = getattr(module, "batch_first", None)
        if given is None or first is None or given.dim() not in (2, 3) or self.is_mixed(given):
            return False
        axis = self._example_axis(given)
        batch = None if given.dim() == 2 else 0 if first else 1
        if axis is None or axis == batch or axis > 1:
            return False
        if not self.are_drawn and (batch is None or given.shape[batch] == 1):
            return False  # examples in their order may well be one sequence
        self.found.append(
            Mixing(
                mix=Mix.SEQUENCE,
                operation=type(module).__name__,
                examples=self.examples,
                shapes=(tuple(given.shape),),
                axis=axis,
                module=name,
                kind=type(module).__name__,
                inside=True,
                place=self._places.here(),
            )
        )
        return True


def _side(code: Tensor, side: int, data: Tensor) -> int:
    return int(code.shape[side - data.dim() + code.dim()])


def _like(plain: Mixing, **changes: Any) -> Mixing:
    import msgspec

    return msgspec.structs.replace(plain, **changes)


def _key(tensor: Tensor) -> tuple[Any, ...]:
    return (shadows.address(tensor), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            for item in arg:
                if isinstance(item, Tensor):
                    yield item


def _mapped(arg: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(arg, Tensor):
        return change(arg)
    if isinstance(arg, list | tuple) and any(isinstance(item, Tensor) for item in arg):
        return [change(item) if isinstance(item, Tensor) else item for item in arg]
    return arg


def _written(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """What it changes in place."""
    found: list[Tensor] = []
    for index, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += _tensors((value,), {})
    return found


def _again(operation: Any, inputs: list[tuple[tuple[Any, ...], dict[str, Any]]], state: Tensor | None) -> list[Any]:
    outputs = []
    for args, kwargs in inputs:
        try:
            if state is not None:
                torch.set_rng_state(state)
            outputs.append(operation(*args, **kwargs))
        except Exception:
            return []
    return outputs


def _is_training(args: tuple[Any, ...]) -> bool:
    flags = [arg for arg in args if isinstance(arg, bool)]
    return not flags or flags[0]


def _normalised(args: tuple[Any, ...], made: list[Tensor]) -> Any:
    """By the mean and the variance of the batch as it is."""
    values, weight, bias = args[:3]
    shape = [1, -1] + [1] * (values.dim() - 2)
    mean, scale = made[1].reshape(shape), made[2].reshape(shape)
    normal = (values - mean) * scale
    if isinstance(weight, Tensor):
        normal = normal * weight.reshape(shape)
    if isinstance(bias, Tensor):
        normal = normal + bias.reshape(shape)
    return (normal.to(values.dtype), made[1], made[2])
