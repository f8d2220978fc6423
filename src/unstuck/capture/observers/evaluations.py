"""Observes stretches in which a model is evaluated: how it does on data that it does not learn from.

A stretch begins when a known model is switched to evaluation or called without gradients, and ends with the next
backward. It is recorded in every kind of window, up to a few calls.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unstuck.capture.detect import graph
from unstuck.capture.detect.evaluation_inputs import EvaluationInputs
from unstuck.capture.detect.fed_back import FedBack
from unstuck.capture.detect.graph import Token
from unstuck.capture.detect.untouched_statistics import untouched
from unstuck.capture.live_objects.arguments import tensors_in as arguments_in
from unstuck.capture.measure.answers import BINARY_LOSSES, LARGEST, right_answers
from unstuck.capture.measure.tensors import is_plain, is_whole, may_measure, reading, tensors_in
from unstuck.capture.observers.data import Batches, arguments_of, has_weights, looked_at, marks_of
from unstuck.capture.observers.scores import Scores
from unstuck.capture.preview.predicting import prediction
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Observer, Watch
from unstuck.events import Evaluated, Place, StatisticsUntouched, TensorFact
from unstuck.events.losses import CLASS_LOSSES

MOST_CALLS = 16
MOST_LOOKS = 20
"""Evaluations of one model in which its batch norms are looked at."""
MOST_LAYERS = 64
_DENSE = 30
"""So many stretches are all looked at; then at most one in so many steps outside of sampled windows."""
_PAUSE = 20
_MOST_WAITING = 256
_KEY = "unstuck.output"
_MOST_TRIES = 5
_MOST_ROWS = 64
_MOST_KNOWN = 8192
_SEEN_BEFORE = 0.02
"""A batch of which this share was trained on is not held out."""
_LARGEST_TARGET = 2**16
_FEWEST_NUMBERS = 8
_SAME_NUMBERS = 0.999


class _Stretch:
    def __init__(self) -> None:
        self.model = ""
        self.place: Place | None = None
        self.training = False
        self.grad_enabled = False
        self.forwards = 0
        self.elsewhere = 0
        """Calls with other data than those of a loader that is trained on."""
        self.input: TensorFact | None = None
        self.loss = ""
        self.loss_place: Place | None = None
        self.values: list[Tensor] = []
        self.right: list[Tensor] = []
        self.labels = 0
        self.classes = 0
        self.held_out = _HeldOut()


class _HeldOut:
    """What answers to batches of loaders that are not trained on were worth, compared by ourselves."""

    def __init__(self) -> None:
        self.right: list[Tensor] = []
        self.labels = 0
        self.classes = 0
        self.errors: list[Tensor] = []
        self.targets: list[Tensor] = []

    def add(self, name: str, answers: Tensor, target: Tensor) -> None:
        """Of one call."""
        right = right_answers(name, answers, target)
        if right is not None:
            self.right.append(right[0])
            self.labels += right[1]
            self.classes = 2 if name in BINARY_LOSSES else answers.shape[1]
        elif name == "mse_loss":
            wanted = target.float().reshape(-1)
            self.errors.append((answers.float().reshape(-1) - wanted).square().sum())
            self.targets.append(torch.stack([wanted.sum(), wanted.square().sum(), wanted.new_tensor(len(wanted))]))

    def explained(self) -> Tensor | None:
        """The share of variance, of all calls together."""
        if not self.errors:
            return None
        total, squares, count = torch.stack(self.targets).double().sum(0)
        share: Tensor = 1 - torch.stack(self.errors).double().sum() / (squares - total * total / count)
        return share


class _Target(NamedTuple):
    """Where in the batches of loaders the target is that a training loss is given, and how answers become its input."""

    loss: str
    element: str
    flattened: bool
    """Are answers to a batch of sequences flattened for the loss?"""


class _Dropped:
    """Outputs of one line whose graphs went unused, since gradients were last asked for."""

    def __init__(self, model: str, training: bool) -> None:
        self.model = model
        self.training = training
        self.count = 0


class Evaluations(Observer):
    """Collects what one stretch shows, and records it when training goes on."""

    def __init__(self, watch: Watch, batches: Batches, scores: Scores) -> None:
        self._watch = watch
        self._scores = scores
        self._batches = batches
        self._inputs = EvaluationInputs(watch)
        self._fed_back = FedBack(watch)
        self._looks: Counter[str] = Counter()
        self._look_at_statistics = watch.guard.protect("batch norms in evaluation", self._statistics)
        self._compare_inputs = watch.guard.protect("inputs of evaluations", self._inputs.given)
        self._compare_targets = watch.guard.protect("targets of ids", self._inputs.compared)
        self._follow_answers = watch.guard.protect("answers given back", self._fed_back.called)
        self._stretch: _Stretch | None = None
        self._recorded = self._begun = 0
        self._last_step = self._last_off = -_PAUSE
        self._uses = 0
        """How often gradients were asked for."""
        self._target: _Target | None = None
        self._tries = 0
        self._batch: dict[str, weakref.ref[Tensor]] = {}
        """The last batch that a loader gave."""
        self._is_held_out = False
        """Does it come from a loader that is not trained on?"""
        self._on_training_data = False
        """Does the evaluation go through a loader that is trained on? What it shows is not an evaluation."""
        self._output: weakref.ref[Tensor] | None = None
        """What a model answered last in training."""
        self._dropped: dict[Place, _Dropped] = {}
        self._waiting: set[weakref.ref[Token]] = set()
        self._trained: set[float] = set()
        """Marks of examples that were trained on, in a trial."""
        self._held_out_answers: Tensor | None = None
        """What a model answered last to examples that were not trained on, until the script has compared it."""

    def attach(self, patches: Patches) -> None:
        """In a trial, what the script compares by itself."""
        comparisons = self._watch.comparisons
        if comparisons is not None:
            comparisons.equal = self._watch.guard.protect("right answers", self._equal)
            comparisons.minus = self._watch.guard.protect("errors", self._minus)

    def switched(self, module: nn.Module) -> None:
        """`eval()` was called on a module."""
        watch = self._watch
        if self._stretch is None and watch.is_listening() and watch.objects.is_called(module) and self._is_time():
            self._begin()

    def gradients_off(self) -> None:
        """`no_grad` begins between sampled windows: an evaluation may follow, or no more than a clip of gradients."""
        window = self._watch.window
        if window.steps - self._last_off >= _PAUSE and self._stretch is None and self._watch.is_listening():
            self._last_off = window.steps
            window.attend(True)

    def expected(self) -> None:
        """A loader begins a pass that nobody has trained on yet."""
        if self._stretch is None and self._watch.window.steps > 0 and self._is_time():
            self._begin()

    def drew(self, batch: list[tuple[str, Tensor]], trained: bool) -> None:
        """A loader gave a batch."""
        self._batch = {name: weakref.ref(tensor) for name, tensor in batch}
        self._is_held_out = not trained
        self._on_training_data = trained and self._stretch is not None

    def trained_on(self, loss: str, source: Tensor, target: Tensor) -> None:
        """A training loss was given these: learn which element of a batch is the target."""
        self._compare_targets(loss, source, target)
        if self._target is not None or self._tries >= _MOST_TRIES or not self._batch or not may_measure():
            return
        output = self._output() if self._output is not None else None
        if output is None or source.numel() != output.numel() or target.numel() > _LARGEST_TARGET:
            return
        self._tries += 1
        with reading():
            same = source.data_ptr() == output.data_ptr() or graph.origin(source) is graph.origin(output)
            for name, reference in self._batch.items() if same else ():
                element = reference()
                if element is not None and _is_same(element, target):
                    flattened = loss in CLASS_LOSSES and source.dim() == 2 and output.dim() == 3
                    self._target = _Target(loss, name, flattened)
                    return

    def _is_time(self) -> bool:
        window = self._watch.window
        return window.sampled or self._begun < _DENSE or window.steps - self._last_step >= _PAUSE

    def _begin(self) -> _Stretch:
        self._stretch = _Stretch()
        self._on_training_data = False
        self._begun += 1
        self._last_step = self._watch.window.steps
        if not self._watch.window.sampled:
            self._watch.window.attend(True)
        return self._stretch

    def forward(self, module: nn.Module, label: str, place: Place | None, arguments: Any, output: Any) -> None:
        """A model was called."""
        recording = torch.is_grad_enabled()
        if not has_weights(module) or not may_measure():
            return
        if recording:
            self._follow(module, label, place, arguments, output)
            if self._watch.window.sampled and self._stretch is None:
                self._scores.answered(output)
                self._trained.update(self._marks_to_keep(arguments))
            answered = prediction(output) if self._target is None and module.training else None
            self._output = weakref.ref(answered) if answered is not None else None
        if self._stretch is not None and recording and self._is_training_again(self._stretch, module):
            self.training_goes_on()
        self._look_at_inputs(module, label, place, arguments, output)
        stretch = self._stretch
        if stretch is None:
            if recording:
                return
            stretch = self._begin()
        stretch.forwards += 1
        stretch.elsewhere += not self._on_training_data
        if stretch.forwards == 1:
            stretch.model, stretch.place, stretch.training = label, place, module.training
            stretch.grad_enabled = recording
            self._look_at_statistics(module, label, place)
            stretch.input = _input(arguments)
            if not (recording and module.training):
                self._batches.evaluated(module, label, arguments, output)
        if self._target is not None and self._is_held_out and not (recording and module.training):
            self._compare(stretch.held_out, self._target, output)
        elif not recording and self._watch.comparisons is not None:
            self._remember(arguments, output)
        if stretch.elsewhere >= 4 * MOST_CALLS:
            self._watch.window.attend(False)

    def _look_at_inputs(self, module: nn.Module, label: str, place: Place | None, arguments: Any, output: Any) -> None:
        """What is given in training, and what elsewhere."""
        evaluates = not (torch.is_grad_enabled() and (module.training or self._stretch is None))
        wanted = not self._on_training_data if evaluates else module.training and self._watch.window.sampled
        if not torch.is_grad_enabled() and self._fed_back.wants(label):
            self._follow_answers(label, arguments_of(module, arguments), prediction(output), place)
        if wanted and self._inputs.wants(label, evaluates):
            self._compare_inputs(label, arguments_of(module, arguments), place, evaluates)
        else:
            self._inputs.forget()

    def _statistics(self, model: nn.Module, label: str, place: Place | None) -> None:
        """Do its batch norms answer by statistics of their own?"""
        self._looks[label] += 1
        if torch.is_grad_enabled() or model.training or self._looks[label] > MOST_LOOKS:
            return
        layers, kept = untouched(model)
        if layers:
            self._watch.tell(
                StatisticsUntouched(
                    step=self._watch.window.steps,
                    place=place,
                    model=label,
                    layers=tuple(layers[:MOST_LAYERS]),
                    batch_norms=kept,
                    looks=self._looks[label],
                )
            )

    def _compare(self, found: _HeldOut, known: _Target, output: Any) -> None:
        """Compare the answers with the target of the batch that was drawn last."""
        reference = self._batch.get(known.element)
        target, answers = reference() if reference is not None else None, prediction(output)
        self._batch = {}  # a second call would be about the same batch
        if target is None or answers is None or not is_plain(answers) or len(answers) != len(target):
            return
        with reading():
            answers, target = answers.detach(), target.detach().to(answers.device)
            if known.loss in CLASS_LOSSES:
                if known.flattened and answers.dim() == 3:
                    answers = answers.reshape(-1, answers.shape[-1])
                target = target.long() if target.dim() == answers.dim() - 1 else target.reshape(-1).long()
                if target.dim() != answers.dim() - 1 or target.numel() * answers.shape[1] != answers.numel():
                    return
            elif target.numel() == answers.numel():
                target = target.to(answers.dtype).reshape(answers.shape)
            else:
                return
            found.add(known.loss, answers, target)

    def _marks_to_keep(self, arguments: Any) -> list[float]:
        wanted = self._watch.comparisons is not None and len(self._trained) < _MOST_KNOWN
        return _marks(arguments) if wanted else []

    def _remember(self, arguments: Any, output: Any) -> None:
        """Keep the answers to examples that were not trained on, until the script compares them."""
        marks, answers = _marks(arguments), prediction(output)
        unseen = bool(marks) and sum(mark in self._trained for mark in marks) <= _SEEN_BEFORE * len(marks)
        is_small = answers is not None and answers.numel() <= LARGEST
        self._held_out_answers = answers if unseen and is_small else None

    def _equal(self, left: Tensor, right: Tensor) -> None:
        """The script compares these in a trial: are they the classes that were answered, and the right ones?"""
        answers = self._held_out_answers
        if answers is None or self._stretch is None or left.numel() != right.numel() or not is_plain(answers):
            return
        found = self._stretch.held_out
        with reading():
            for classes, read in _classes_of(answers):
                for own, target in ((left, right), (right, left)):
                    if torch.equal(read.reshape(-1).double(), own.reshape(-1).double()):
                        self._held_out_answers = None  # counted once, and not again when we compare
                        found.right.append((read.reshape(-1) == target.reshape(-1)).sum())
                        found.labels += target.numel()
                        found.classes = classes
                        return

    def _minus(self, left: Tensor, right: Tensor) -> None:
        """The script subtracts these in a trial: are they numbers that were answered, and the right ones?"""
        answers = self._held_out_answers
        if answers is None or self._stretch is None or left.shape != right.shape or not is_plain(answers):
            return
        if not is_plain(left) or not is_plain(right) or left.numel() != answers.numel():
            return
        with reading():
            for own, target in ((left, right), (right, left)):
                if not target.requires_grad and _are_from(own, answers):
                    self._held_out_answers = None
                    self._stretch.held_out.add("mse_loss", own, target)
                    self._compare_targets("mse_loss", own, target)
                    return

    def _is_training_again(self, stretch: _Stretch, module: nn.Module) -> bool:
        return stretch.forwards > 0 and (not stretch.grad_enabled or (module.training and not stretch.training))

    def loss(self, name: str, source: Tensor, target: Tensor, result: Tensor) -> None:
        """A loss of torch was computed."""
        if not torch.is_grad_enabled():
            self._compare_targets(name, source, target)
        stretch = self._stretch
        # More losses than answers: some compare other things, such as the inputs with the targets.
        most = min(MOST_CALLS, stretch.forwards) if stretch is not None else 0
        if stretch is None or len(stretch.values) >= most or self._on_training_data or not may_measure():
            return
        if not is_plain(result) or result.numel() != 1:
            return
        # Of answers without gradients none is asked for: this loss trains something on top of them.
        if result.requires_grad and (stretch.training or not stretch.grad_enabled):
            return
        if stretch.loss not in ("", name):
            return
        if not stretch.loss:
            stretch.loss, stretch.loss_place = name, self._watch.places.here()
        with reading():
            stretch.values.append(result.detach().float().reshape(()))
            right = right_answers(name, source, target)
            if right is not None:
                stretch.right.append(right[0])
                stretch.labels += right[1]
                stretch.classes = 2 if name in BINARY_LOSSES else source.shape[0 if source.dim() == 1 else 1]
        if len(stretch.values) >= MOST_CALLS:
            self._watch.window.attend(False)

    def backward(self) -> None:
        """A backward begins."""
        self._uses += 1
        if self._dropped:
            self._tell_dropped()
        if self._stretch is not None:
            self.training_goes_on()
        elif self._watch.window.attentive:
            self._watch.window.attend(False)

    def gradients_asked(self) -> None:
        """A backward or `autograd.grad` begins: what was dropped before was not needed, and training goes on."""
        self._uses += 1
        if self._dropped:
            self._tell_dropped()

    def training_goes_on(self) -> None:
        """A backward begins, or the run ends."""
        stretch, self._stretch, self._held_out_answers = self._stretch, None, None
        if stretch is not None:
            self._watch.window.attend(False)
            self._tell(stretch)
            self._batches.settle()

    def finish(self) -> None:
        """The run ended."""
        self.training_goes_on()
        self._tell_dropped()
        self._inputs.finish()
        self._fed_back.finish()

    def _tell(self, stretch: _Stretch) -> None:
        own = stretch.held_out
        if not stretch.values and not own.labels and not own.errors:
            return
        self._recorded += 1
        watch = self._watch
        hits, labels, classes = stretch.right, stretch.labels, stretch.classes
        if own.labels:
            hits, labels, classes = own.right, own.labels, own.classes
        with reading():
            value = watch.scalars.later(torch.stack(stretch.values).mean()) if stretch.values else None
            right = torch.stack(hits).sum() / labels if labels else None
            accuracy = watch.scalars.later(right) if right is not None else None
            share = own.explained()
            explained = watch.scalars.later(share) if share is not None else None
        watch.tell(
            Evaluated(
                step=watch.window.steps,
                place=stretch.loss_place or stretch.place,
                model=stretch.model,
                training_mode=stretch.training,
                grad_enabled=stretch.grad_enabled,
                forwards=stretch.forwards,
                loss=stretch.loss,
                value=value,
                accuracy=accuracy,
                input=stretch.input,
                examples=labels,
                classes=classes,
                explained=explained,
            )
        )

    def _follow(self, module: nn.Module, label: str, place: Place | None, arguments: Any, output: Any) -> None:
        """Learn of it when the graph behind an output goes before anybody asked for gradients."""
        tensor = next((tensor for tensor in tensors_in(output) if tensor.grad_fn is not None), None)
        size = next((len(given) for given in tensors_in(arguments, depth=3) if given.dim() > 1), 2)
        if tensor is None or place is None or size < 2 or len(self._waiting) >= _MOST_WAITING:
            return
        token, uses, training = Token(), self._uses, module.training
        node: Any = tensor.grad_fn
        node.metadata[_KEY] = token

        def gone(reference: weakref.ref[Token]) -> None:
            self._waiting.discard(reference)
            if uses == self._uses:
                self._dropped.setdefault(place, _Dropped(label, training)).count += 1

        self._waiting.add(weakref.ref(token, gone))

    def _tell_dropped(self) -> None:
        dropped, self._dropped = self._dropped, {}
        for place, found in dropped.items():
            if found.count > 1 and self._recorded < 4 * _DENSE:
                self._recorded += 1
                self._watch.tell(
                    Evaluated(
                        step=self._watch.window.steps,
                        place=place,
                        model=found.model,
                        training_mode=found.training,
                        grad_enabled=True,
                        forwards=found.count,
                        unused=found.count,
                    )
                )


def _are_from(own: Tensor, answers: Tensor) -> bool:
    """Are these the answers, perhaps brought back to another unit, or into limits?"""
    if own.data_ptr() == answers.data_ptr():
        return True
    one, other = (values.detach().reshape(-1).double() for values in (own, answers))
    if len(one) < _FEWEST_NUMBERS:
        return False
    forms = (other, other.clamp(float(one.min()), float(one.max())))
    return any(float(torch.corrcoef(torch.stack([one, form]))[0, 1]) > _SAME_NUMBERS for form in forms)


def _marks(arguments: Any) -> list[float]:
    """A number for each example, by which it is known again; none where the batch cannot be read."""
    if not may_measure():
        return []
    given = [each for each in arguments_in(arguments) if is_plain(each) or is_whole(each)]
    rows = next((each for each in given if each.dim() > 1), None)
    with reading():
        if rows is None:  # numbers side by side, such as a user and an item
            columns = [each.detach()[:_MOST_ROWS].double() for each in given if each.shape == given[0].shape]
            rows = torch.stack(columns, 1) if columns and columns[0].dim() == 1 else None
        marks: list[float] = marks_of(rows.detach()[:_MOST_ROWS]).tolist() if rows is not None else []
    return marks


def _classes_of(answers: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The ways in which scripts read classes from answers, with the number of classes."""
    if answers.dim() > 1 and answers.shape[1] > 1:
        yield answers.shape[1], answers.argmax(1)
    if answers.dim() > 2 and answers.shape[-1] > 1:
        yield answers.shape[-1], answers.argmax(-1)
    if answers.dim() == 1 or (answers.dim() == 2 and answers.shape[1] == 1):
        yield 2, answers > 0
        yield 2, answers > 0.5


def _input(arguments: Any) -> TensorFact | None:
    tensor = next(iter(tensors_in(arguments, depth=3)), None)
    if tensor is None or tensor.numel() == 0:
        return None
    fact = looked_at([("input", tensor)]).inputs[0]
    return TensorFact(
        shape=tuple(tensor.shape),
        dtype=fact.dtype,
        low=fact.low,
        high=fact.high,
        mean=fact.mean,
        spread=fact.spread,
    )


def _is_same(element: Tensor, target: Tensor) -> bool:
    """Is the target this element of a batch, perhaps on another device, in another shape or of another type?"""
    if element.numel() != target.numel() or not element.numel():
        return False
    flat, wanted = element.detach().reshape(-1), target.detach().reshape(-1)
    return element is target or bool((flat.double().cpu() == wanted.double().cpu()).all())
