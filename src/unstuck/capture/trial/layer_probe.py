"""Gathers, in the user's own loop and with the weights held, what inputs and modules give for each example and what
its target is; at the end, how well the target can be read from each of them.

What belongs together is a unit: everything from one backward to the next. The first unit shows how examples and
positions lie in each tensor; those after it are read, until there are enough examples.
"""

from __future__ import annotations

import inspect
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from unstuck.capture.measure.tensors import is_plain, is_whole, reading, tensors_in
from unstuck.capture.observers.data import arguments_of, marks_of
from unstuck.capture.observers.losses import NAMES
from unstuck.capture.places import Places
from unstuck.capture.torch_hooks import hooks
from unstuck.capture.trial.changed_inputs import TARGETS
from unstuck.capture.trial.example_features import Layout, around, by_example, hashed, whole, whole_ids
from unstuck.capture.trial.held_weights import HeldWeights
from unstuck.capture.trial.lab import Lab, is_model
from unstuck.capture.trial.matched_targets import IGNORED, Compared, Matching, Obstacle, compared, matched
from unstuck.capture.trial.readers import Reading, read, split
from unstuck.events.losses import VALUE_LOSSES

MOST_SITES = 32
MOST_ITEMS, MOST_FOR_SITES = 2000, 768
"""Targets that are read from the inputs, and from each module."""
ENOUGH = 600
"""Items after which the end of a pass over the data is the end of gathering."""
WIDTH, INPUT_WIDTH = 1024, 2048
"""Numbers that stand for one item."""
IN_SEQUENCE, IN_IMAGE = 4, 8
"""Positions of an example that are read."""
MOST_CLASSES, MOST_COLUMNS = 32, 32
GRADIENT_UNITS = 8
SECONDS = 9.0
"""What reading all modules may take."""
NARROW = 128
"""A module with fewer outputs than this may lose what it was given for that reason alone."""
LEAST = 0.25
"""The share of the best score that a place must have to be one that information was at."""
CONSTANT = 1e-5
NEARLY_ALL = 0.95
"""A dropout of less is passed over."""
MANY_SITES, FEWER_ITEMS = 12, 512
"""With more modules than this, fewer targets are read from each."""
WITH_LOGITS = "binary_cross_entropy_with_logits"
COMPARABLE = (*VALUE_LOSSES, "binary_cross_entropy", WITH_LOGITS, "difference")
"""Losses whose predictions are in the units of their targets, or can be brought there."""
PREDICTION = "the prediction"

Spot = tuple[int, str, str, bool]
"""A model by its number, a module by its name, which of its outputs, and whether it is an input instead."""
Key = tuple[int, str, str, bool, int]
"""The same, and which call of the module."""


class Site:
    """One place in the forward pass: an output of a module, or what it was given if another operation made that."""

    def __init__(self, key: Key, module: nn.Module, tensor: Tensor, place: Any) -> None:
        self.root, self.name, self.part, is_input, self.call = key
        self.kind, self.is_input, self.place = type(module).__name__, is_input, place
        self.module = self.label = ""
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        self.weights = [] if is_input else [id(p) for p in module.parameters() if p.requires_grad]
        self.is_zero = not is_input and any(p.dim() > 1 and not bool(p.detach().any()) for p in own)
        self.shape = tuple(tensor.shape)
        self.wants_gradient = tensor.requires_grad
        self.features: list[Tensor] = []
        self.alike: list[float] = []
        self.arrived = 0
        self.largest = self.variation = 0.0


class Unit:
    """What happened since the last backward."""

    def __init__(self) -> None:
        self.inputs: list[tuple[str, Tensor]] = []
        self.known: dict[int, Tensor] = {}
        """Inputs and outputs, kept so that their ids stay theirs."""
        self.outputs: list[Tensor] = []
        self.calls: Counter[Spot] = Counter()
        self.roots: list[nn.Module] = []
        self.sites: dict[Key, Site] = {}
        self.features: dict[Key, Tensor | None] = {}
        self.compared: Compared | None = None
        self.is_by_hand = False


class LayerProbe:
    """Gathers and reads. The note `layers` has the answer."""

    def __init__(self, lab: Lab, first: int) -> None:
        self._lab, self._first = lab, first
        self._places = Places(lab.stage)
        self._prediction = nn.Identity()
        """Stands for whatever makes what the loss is given."""
        self._unit = Unit()
        self._depth = self._backwards = 0
        self._is_over = False
        self._why = ""
        self._names: dict[int, dict[int, str]] = {}
        self._sites: dict[Key, Site] = {}
        self._matching: Matching | None = None
        self._found: Compared | None = None
        self._shapes: tuple[Any, ...] = ()
        self._kinds: dict[str, int] = {}
        self._chosen = torch.zeros(0, 2, dtype=torch.long)
        self._units = self._restarts = 0
        self._held = HeldWeights(lab, first)
        self._fresh = False
        self._clear()
        lab.wrap(nn.Module, "__call__", self._calling)
        for name in NAMES:
            lab.wrap(F, name, partial(self._comparing, name))
        for name in ("__sub__", "__rsub__", "sub"):
            lab.wrap(Tensor, name, self._subtracting)
        for owner in (Tensor, torch.autograd):
            lab.wrap(owner, "backward", self._around_backward)
        lab.wrap(DataLoader, "__iter__", self._beginning)
        lab.when_trial_ends.append(self._finish)

    def _clear(self) -> None:
        self._items = 0
        self._inputs: list[Tensor] = []
        self._wholes: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._groups: list[Tensor] = []
        self._slots: list[Tensor] = []
        self._seen: set[tuple[float, ...]] = set()
        self._answers: list[Tensor] = []
        for site in self._sites.values():
            site.features, site.alike = [], []

    # Calls of modules.

    @property
    def _is_on(self) -> bool:
        return not self._is_over and self._lab.steps >= self._first and torch.is_grad_enabled()

    def _safely(self, action: Callable[..., Any], *args: Any) -> Any:
        """A mistake of ours costs this experiment, and nothing else."""
        try:
            with reading():
                return action(*args)
        except Exception as error:
            if os.environ.get("UNSTUCK_RAISE") == "1":
                raise
            self._is_over, self._why = True, f"reading failed with {type(error).__name__}: {error}"
            return None

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._is_on:
                return original(module, *args, **kwargs)
            counts = self._depth > 0 or is_model(module)
            self._safely(self._before, module, args, kwargs)
            self._depth += counts
            try:
                output = original(module, *args, **kwargs)
            finally:
                self._depth -= counts
            if self._is_on:
                self._safely(self._after, module, output)
            return output

        return call

    def _name(self, module: nn.Module) -> tuple[int, str]:
        """The model that it is part of, by its number, and its name there."""
        for number, root in reversed(list(enumerate(self._unit.roots))):
            names = self._names.get(id(root))
            if names is None:
                names = self._names[id(root)] = {id(part): name for name, part in root.named_modules()}
            if id(module) in names:
                return number, names[id(module)]
        return -1, type(module).__name__

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        unit = self._unit
        given = arguments_of(module, (args, kwargs))
        if self._depth == 0 and is_model(module):
            if all(root is not module for root in unit.roots):
                unit.roots.append(module)
            for name, tensor in given:
                is_new = id(tensor) not in unit.known and not tensor.requires_grad
                if is_new and not TARGETS.search(name) and (is_plain(tensor) or is_whole(tensor)):
                    unit.inputs.append((name, tensor))
                    unit.known[id(tensor)] = tensor
        if not is_model(module) and (self._depth == 0 or type(module).__name__.endswith("Loss")):
            return  # a loss, which is given the target
        for _, tensor in given[:2]:
            if id(tensor) not in unit.known and is_plain(tensor):
                self._record(module, tensor, is_input=True)

    def _after(self, module: nn.Module, output: Any) -> None:
        made = tensors_in(output)[:3]
        if "Dropout" in type(module).__name__ and float(getattr(module, "p", 1.0)) < NEARLY_ALL:
            self._unit.known |= {id(tensor): tensor for tensor in made}
            return
        for index, tensor in enumerate(made):
            if id(tensor) not in self._unit.known:
                self._record(module, tensor, f"[{index}]" if len(made) > 1 else "")

    def _record(self, module: nn.Module, tensor: Tensor, part: str = "", *, is_input: bool = False) -> None:
        unit = self._unit
        unit.known[id(tensor)] = tensor
        if tensor.dim() == 0 or tensor.numel() < 2:
            return
        if not is_input:
            unit.outputs.append(tensor)
        root, name = (-1, PREDICTION) if module is self._prediction else self._name(module)
        spot = (root, name, part, is_input)
        unit.calls[spot] += 1
        key: Key = (*spot, unit.calls[spot])
        if self._matching is None:
            unit.sites[key] = Site(key, module, tensor, self._places.here())
            return
        site = self._sites.get(key)
        if site is None:
            return
        if self._units <= GRADIENT_UNITS and tensor.requires_grad:
            with torch.enable_grad():
                hooks.when_gradient_arrives(tensor, partial(self._arrived, site))
        if self._items < MOST_FOR_SITES:
            unit.features[key] = self._features_of(tensor, site)

    def _features_of(self, tensor: Tensor, site: Site) -> Tensor | None:
        """(examples x slots, numbers)."""
        assert self._matching is not None
        layout = self._matching.layout
        examples = by_example(tensor.detach(), layout)
        if examples is None:
            return None
        table = examples.float().reshape(len(examples), -1)
        scale = table.square().mean().sqrt()
        if float(scale) > 0 and len(table) > 1:
            site.alike.append(float(table.var(0).mean().sqrt() / scale))
        else:
            site.alike.append(0.0)
        if not layout.positions:
            return whole(examples, WIDTH).cpu()
        near = around(examples, layout, self._chosen, WIDTH)
        return None if near is None else near.flatten(0, 1).cpu()

    def _arrived(self, site: Site, gradient: Tensor) -> None:
        if self._is_over or self._matching is None:
            return
        self._safely(self._note_gradient, site, gradient.detach())

    def _note_gradient(self, site: Site, gradient: Tensor) -> None:
        assert self._matching is not None
        site.arrived += 1
        site.largest = max(site.largest, float(gradient.abs().max()))
        rows = by_example(gradient, self._matching.layout)
        if rows is not None and len(rows) > 1:
            site.variation = max(site.variation, float((rows - rows.mean(0)).abs().max()))
        else:
            site.variation = max(site.variation, float(gradient.abs().max()))

    # Losses.

    def _comparing(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        parameters = tuple(inspect.signature(original).parameters)

        def loss(*args: Any, **kwargs: Any) -> Any:
            unit = self._unit
            if self._is_on and (unit.compared is None or unit.is_by_hand):
                given = dict(zip(parameters, args, strict=False)) | kwargs
                self._compare(name, given.get("input"), given.get("target"), given.get("ignore_index"), False)
            return original(*args, **kwargs)

        return loss

    def _subtracting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A loss written by hand: a prediction less its target."""

        def subtract(one: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0 and self._is_on and self._unit.compared is None and isinstance(other, Tensor):
                first, second = (one, other) if one.requires_grad else (other, one)
                if first.requires_grad and not second.requires_grad and first.shape == second.shape:
                    self._compare("difference", first, second, None, True)
            return original(one, other, *args, **kwargs)

        return subtract

    def _compare(self, name: str, prediction: Any, target: Any, ignored: Any, by_hand: bool) -> None:
        unit = self._unit
        if not (isinstance(prediction, Tensor) and isinstance(target, Tensor) and prediction.requires_grad):
            return
        plain = is_plain(prediction) and (is_plain(target) or is_whole(target))
        if not plain or target.requires_grad or target.numel() < 2 or not unit.outputs:
            return
        shapes_known = self._shapes == self._shapes_of(target)
        try:
            found = compared(
                name, prediction, target, IGNORED if ignored is None else int(ignored), unit.outputs, shapes_known
            )
        except Exception as error:
            if os.environ.get("UNSTUCK_RAISE") == "1":
                raise
            self._is_over, self._why = True, f"reading failed with {type(error).__name__}: {error}"
            return
        # A target that is given to the model, too, is not an input of it.
        unit.inputs = [one for one in unit.inputs if one[1] is not target]
        self._why = "" if unit.inputs else Obstacle.COPIES.value
        if found is not None:
            unit.compared, unit.is_by_hand = found, by_hand
            if id(prediction) not in unit.known:
                self._safely(partial(self._record, is_input=True), self._prediction, prediction)

    def _shapes_of(self, target: Tensor) -> tuple[Any, ...]:
        return tuple(target.shape), *(tuple(tensor.shape) for _, tensor in self._unit.inputs)

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._backwards += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._backwards -= 1
                if self._backwards == 0 and not self._is_over and self._lab.steps >= self._first:
                    unit, self._unit = self._unit, Unit()
                    self._safely(self._end_unit, unit)

        return backward

    def _beginning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A pass over the data begins; not one for an evaluation."""

        def begin(loader: Any) -> Any:
            if self._lab.steps >= self._first and torch.is_grad_enabled():
                self._fresh = True
            return original(loader)

        return begin

    # Units.

    def _end_unit(self, unit: Unit) -> None:
        if unit.compared is None or not unit.inputs:
            return
        if self._fresh and self._items:
            self._fresh = False
            if self._items >= ENOUGH or self._restarts:
                self._end()
                return
            # Examples that come again, changed at random, must not be held out from themselves.
            self._restarts += 1
            self._clear()
        self._fresh = False
        if self._matching is None:
            self._lay_out(unit)
        else:
            self._take(unit)

    def _lay_out(self, unit: Unit) -> None:
        found = unit.compared
        assert found is not None
        crossed = any(getattr(part, "batch_first", True) is False for root in unit.roots for part in root.modules())
        answer = matched(found, [tensor for _, tensor in unit.inputs], crossed)
        if isinstance(answer, Obstacle):
            self._why = answer.value
            return
        self._why = ""
        self._matching, self._found = answer, found
        self._shapes = tuple(found.target.shape), *(tuple(tensor.shape) for _, tensor in unit.inputs)
        layout = answer.layout
        self._sites = dict(_spread(list(unit.sites.items()), MOST_SITES))
        models = _named([type(root).__name__ for root in unit.roots])
        for site in self._sites.values():
            site.module, site.label = _names(site, models)
        table_ids = {
            name: int(tensor.max()) + 1
            for name, tensor in unit.inputs
            if is_whole(tensor) and tensor.dim() < 3 and tensor.dtype != torch.bool and tensor.numel()
        }
        self._kinds = {name: max(2, kinds) for name, kinds in table_ids.items()}
        self._chosen = _choose(layout, answer.items)

    def _take(self, unit: Unit) -> None:
        assert self._matching is not None
        assert unit.compared is not None
        found, layout = unit.compared, self._matching.layout
        if self._shapes != (tuple(found.target.shape), *(tuple(tensor.shape) for _, tensor in unit.inputs)):
            return  # the last, smaller batch, or sequences of another length
        items = self._matching.items
        flat = _flat(self._chosen, layout) if layout.positions else torch.zeros(1, dtype=torch.long)
        rows = items[:, flat].reshape(-1)
        slots = torch.arange(len(flat)).repeat(layout.size)
        targets = found.rows().cpu()[rows.clamp(min=0)]
        counts = rows >= 0
        if found.is_classes:
            counts &= (targets != found.ignored) & (targets >= 0)
        else:
            counts &= torch.isfinite(targets.float()).all(1)
        inputs, marks, wholes = self._read_inputs(unit, layout)
        if inputs is None:
            self._is_over, self._why = True, Obstacle.SHAPES.value
            return
        counts &= torch.isfinite(inputs).all(1)
        groups = marks.repeat_interleave(len(flat))
        values = targets.double() if found.is_classes else marks_of(targets.float())
        for row in range(len(rows)):
            if counts[row]:
                seen = (float(groups[row]), float(slots[row]), float(values[row]))
                counts[row] = seen not in self._seen
                self._seen.add(seen)
        self._units += 1
        if not bool(counts.any()):
            if self._units > 4 and self._items and len(self._seen) < self._units * len(rows) // 4:
                self._end()
            return
        self._inputs.append(inputs[counts])
        self._wholes.append(wholes.repeat_interleave(len(flat), 0)[counts] if layout.positions else inputs[:0])
        self._targets.append(targets[counts])
        self._groups.append(groups[counts])
        self._slots.append(slots[counts])
        self._answers.append(self._own(found, rows.clamp(min=0))[counts])
        if self._items < MOST_FOR_SITES:
            for key, site in self._sites.items():
                features = unit.features.get(key)
                site.features.append(features[counts] if features is not None else torch.empty(0, 0))
        self._items += int(counts.sum())
        if self._items >= MOST_ITEMS:
            self._end()

    def _own(self, found: Compared, rows: Tensor) -> Tensor:
        """What the model answered: classes, or numbers as the targets are."""
        answers = found.answers()[rows.to(found.prediction.device)].float().cpu()
        if found.is_classes:
            return answers.argmax(1)
        return answers.sigmoid() if found.loss == WITH_LOGITS else answers

    def _read_inputs(self, unit: Unit, layout: Layout) -> tuple[Tensor | None, Tensor, Tensor]:
        """Of each item, a number for each example that no other has, and of each whole example."""
        near: list[Tensor] = []
        wholes: list[Tensor] = []
        marks = torch.zeros(layout.size, dtype=torch.float64)
        share = INPUT_WIDTH // max(1, len(unit.inputs))
        last = int(self._chosen[-1, 0]) if layout.is_causal and len(self._chosen) else -1
        for number, (name, tensor) in enumerate(unit.inputs, 1):
            examples = by_example(tensor.detach(), layout)
            if examples is None:
                continue
            # Another factor for each input: two ids must not be known by their sum.
            marks += (
                number**0.5 * marks_of(examples.double() if examples.dim() > 1 else examples.double()[:, None]).cpu()
            )
            kinds = self._kinds.get(name, 0)
            if not layout.positions:
                near.append((whole_ids(examples, kinds, share) if kinds else whole(examples, share)).cpu())
                continue
            found = around(examples, layout, self._chosen, share, kinds)
            in_order = examples.dim() > 1 and examples.shape[1] == layout.positions[0]
            if layout.is_causal and in_order:
                examples = examples[:, : last + 1]
            each = (whole_ids(examples, kinds, share) if kinds else whole(examples, share)).cpu()
            wholes.append(each)
            if found is None:
                each = hashed(each, share // 4)
                near.append(each.repeat_interleave(len(self._chosen), 0))
            else:
                near.append(found.flatten(0, 1).cpu())
        table = torch.cat(near, 1) if near else None
        return table, marks, torch.cat(wholes, 1) if wholes else torch.empty(0, 0)

    def _end(self) -> None:
        self._is_over = True
        self._lab.has_enough = True

    # Reading.

    def _finish(self) -> None:
        self._is_over = True
        try:
            with reading():
                answer = self._answer()
        except Exception as error:
            if os.environ.get("UNSTUCK_RAISE") == "1":
                raise
            answer = {"why": f"reading failed with {type(error).__name__}: {error}"}
        self._lab.notes["layers"] = answer

    def _answer(self) -> dict[str, Any]:
        began = time.monotonic()
        if self._found is None or self._matching is None or not self._items:
            return {"why": self._why, "steps": self._lab.steps}
        targets, groups, slots = (torch.cat(part) for part in (self._targets, self._groups, self._slots))
        layout = self._matching.layout
        wanted = _as_table(targets, self._found.is_classes)
        width = len(self._chosen) if layout.positions else 1
        answer: dict[str, Any] = {
            "loss": self._found.loss,
            "is_classes": self._found.is_classes,
            "items": len(targets),
            "examples": len(torch.unique(groups)),
            "positions": list(layout.positions),
            "steps": min(self._first, self._lab.steps),
            "varies": bool((wanted.std(0) > 0).any()) if len(wanted) > 1 else False,
        }
        if not answer["varies"] or answer["examples"] < 2 * 5:
            return answer
        parts = split(groups, _width(slots, width))
        features = torch.cat(self._inputs)
        from_inputs = read(features, wanted, parts)
        looks = [from_inputs]
        if layout.positions and len(self._wholes[0]):
            looks += list(self._from_wholes(wanted, groups, slots, width, layout))
        best = max(looks, key=lambda look: look.score - look.chance)
        if not math.isfinite(best.score):
            return answer
        answer["inputs"] = _reading(best)
        answer |= self._compared_with_own(targets, from_inputs)
        answer["sites"] = self._read_sites(features, wanted, groups, slots, width, began + SECONDS)
        return answer

    def _from_wholes(
        self, wanted: Tensor, groups: Tensor, slots: Tensor, width: int, layout: Layout
    ) -> Iterator[Reading]:
        """Read single positions from whole examples: what they depend on may be far away."""
        table = torch.cat(self._wholes)
        for slot in [width - 1] if layout.is_causal or width == 1 else [0, width - 1]:
            own = slots == slot
            if int(own.sum()) >= 50 and bool((wanted[own].std(0) > 0).any()):
                yield read(table[own], wanted[own], split(groups[own], 1))

    def _compared_with_own(self, targets: Tensor, best: Reading) -> dict[str, Any]:
        """How often reader, model and a guess are right, or which share of the variance they explain."""
        assert self._found is not None
        answers = torch.cat(self._answers)
        if self._found.is_classes:
            kinds, counts = torch.unique(targets, return_counts=True)
            common = kinds[counts.argsort(descending=True)][:MOST_CLASSES]
            shares = torch.stack([(targets == kind).float().mean() for kind in common])
            guessed = common[(best.predictions[:, : len(common)] + shares).argmax(1)]
            return {
                "reader_right": float((guessed == targets).float().mean()),
                "own_right": float((answers == targets).float().mean()),
                "guess_right": float(counts.max() / len(targets)),
            }
        if self._found.loss not in COMPARABLE:
            return {"reader_right": best.score}
        wanted = targets.float()
        whole_spread = (wanted - wanted.mean(0)).square().sum().clamp(min=1e-12)
        left = (answers.reshape(wanted.shape) - wanted).square().sum()
        own = float(1 - left / whole_spread)
        return {"reader_right": best.score, "own_right": own if math.isfinite(own) else None, "guess_right": 0.0}

    def _read_sites(
        self, inputs: Tensor, wanted: Tensor, groups: Tensor, slots: Tensor, width: int, until: float
    ) -> list[dict[str, Any]]:
        found = [self._facts(site) for site in self._sites.values()]
        sites = [site for site in self._sites.values() if _is_read(site)]
        count = min((sum(map(len, site.features)) for site in sites), default=0)
        count = min(count, MOST_FOR_SITES if len(sites) <= MANY_SITES else FEWER_ITEMS)
        count -= count % width if _width(slots[: count - count % width], width) == width else 0
        if not count:
            return found
        parts = split(groups[:count], _width(slots[:count], width))
        targets = wanted[:count]
        first = read(inputs[:count], targets, parts)
        # The last ones are what the model answers, and tell most; then as many of the others as there is time for.
        order = sorted(range(len(found)), key=lambda index: (index < len(found) - 2, _turn(index)))
        tables: dict[int, Tensor] = {}
        for index, site in enumerate(self._sites.values()):
            if _is_read(site) and bool(torch.isfinite(table := torch.cat(site.features)[:count]).all()):
                tables[index] = table
        for index in order:
            if index in tables and time.monotonic() < until:
                found[index] |= _reading(read(tables[index], targets, parts))
        best = max([first.score, *(row["score"] for row in found if row.get("score") is not None)])
        source, level = inputs[:count], first.score
        for index, row in enumerate(found):
            if row.get("score") is None:
                continue
            if row["score"] >= LEAST * best:
                source, level = tables[index], row["score"]
            elif time.monotonic() < until + SECONDS / 3:
                row["control"] = self._control(source, tables[index], targets, parts, level)
        return [{"name": "", "kind": "", **_reading(first)}, *found]

    def _facts(self, site: Site) -> dict[str, Any]:
        return {
            "name": site.label,
            "module": site.module,
            "kind": site.kind,
            "is_input": site.is_input,
            "shape": list(site.shape),
            "place": site.place,
            "alike": max(site.alike, default=None),
            "should_learn": any(weight in self._held.weights for weight in site.weights),
            "learns": any(weight in self._held.moved for weight in site.weights),
            "is_zero": site.is_zero,
            "wants_gradient": site.wants_gradient,
            "gradient": site.largest if site.arrived else None,
            "gradient_varies": site.variation > CONSTANT * site.largest if site.arrived else None,
        }

    def _control(self, source: Tensor, table: Tensor, wanted: Tensor, parts: Any, level: float) -> float:
        """What as few random combinations of what came before would keep of it."""
        columns = table.shape[1]
        if columns >= min(NARROW, source.shape[1]):
            return level
        generator = torch.Generator().manual_seed(columns)
        scores = []
        spread = source.float().std(0)
        even = source.float() / torch.where(spread > 0, spread, 1.0)
        for _ in range(3):
            mix = torch.randn(source.shape[1], columns, generator=generator)
            scores.append(read(even @ mix, wanted, parts).score)
        return sorted(scores)[1]


def _named(kinds: list[str]) -> list[str]:
    """Models by their classes, numbered where several are of one."""
    return [
        f"{kind} {kinds[: number + 1].count(kind)}" if kinds.count(kind) > 1 else kind
        for number, kind in enumerate(kinds)
    ]


def _names(site: Site, models: list[str]) -> tuple[str, str]:
    """The module of a site, and a name that no other one has."""
    name = site.name
    if site.root >= 0:
        model = models[site.root]
        name = model if not name else f"{model}.{name}" if len(models) > 1 else name
    prefix = "input of " if site.is_input and name != PREDICTION else ""
    call = f" (call {site.call})" if site.call > 1 else ""
    return name + call, f"{prefix}{name}{site.part}{call}"


def _turn(index: int) -> int:
    """Every eighth first, then every fourth, and so on."""
    return next((turn for turn, step in enumerate((8, 4, 2)) if index % step == 0), 3)


def _is_read(site: Site) -> bool:
    return bool(site.features) and all(len(part) and part.dim() == 2 and part.shape[1] for part in site.features)


def _reading(look: Reading) -> dict[str, Any]:
    is_finite = all(map(math.isfinite, look[:3]))
    return {"score": look.score, "chance": look.chance, "error": look.error} if is_finite else {"score": None}


def _spread(sites: list[Any], most: int) -> list[Any]:
    """So many of them, spread evenly, the last among them."""
    if len(sites) <= most:
        return sites
    wanted = {round(index * (len(sites) - 1) / (most - 1)) for index in range(most)}
    return [site for index, site in enumerate(sites) if index in wanted]


def _choose(layout: Layout, items: Tensor) -> Tensor:
    """Positions that are read, in order, among those that have a target."""
    if not layout.positions:
        return torch.zeros(0, 2, dtype=torch.long)
    have = (items >= 0).any(0).nonzero().flatten()
    wanted = min(len(have), IN_SEQUENCE if len(layout.positions) == 1 else IN_IMAGE)
    generator = torch.Generator().manual_seed(0)
    flat = have[torch.randperm(len(have), generator=generator)[:wanted]].sort().values
    coordinates: Tensor = torch.stack(torch.unravel_index(flat, layout.positions), 1)
    return coordinates


def _flat(chosen: Tensor, layout: Layout) -> Tensor:
    flat = torch.zeros(len(chosen), dtype=torch.long)
    for axis, length in enumerate(layout.positions):
        flat = flat * length + chosen[:, axis]
    return flat


def _width(slots: Tensor, width: int) -> int:
    """Items in a row that belong to one example, if none is missing."""
    is_whole_examples = len(slots) % width == 0 and bool((slots.reshape(-1, width) == torch.arange(width)).all())
    return width if is_whole_examples else 1


def _as_table(targets: Tensor, is_classes: bool) -> Tensor:
    """Numbers to be read: one for each of the most frequent classes, or those of the target on one scale."""
    if is_classes:
        kinds, counts = torch.unique(targets, return_counts=True)
        common = kinds[counts.argsort(descending=True)][:MOST_CLASSES]
        return torch.eq(targets[:, None], common[None]).float()
    table = targets.float()
    spread = table.std(0)
    return hashed((table - table.mean(0)) / torch.where(spread > 0, spread, 1.0), MOST_COLUMNS)
