"""Looks at the first batches of a training as the loss sees them: predictions, targets, and what models were given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from unstuck.capture.detect.comparisons import LARGEST, Answer as Followed, comparison_in
from unstuck.capture.observers.losses import NAMES
from unstuck.capture.places import Places
from unstuck.capture.trial.lab import Lab
from unstuck.capture.trial.model_probe import Called, Compared, Listener
from unstuck.capture.trial.relations import augmentations, layout, mode_gap, reach, sequences, steadiness, towards
from unstuck.capture.trial.relations.carried import Carried
from unstuck.capture.trial.relations.guard import guarded, note_failure
from unstuck.findings.relations import Answer, Relation

BACKWARDS = 4
"""So many are looked at: those of a generator and of its discriminator are different ones."""


class BatchProbe(Listener):
    """Tests at the first backward what needs one batch, at the first few where losses point to, in the second step what
    the first one left behind, and at the end what the modes are worth."""

    losses = NAMES
    inside_models = True

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self._followed: list[tuple[Called, Tensor, Followed]] = []
        self._pulls: list[towards.Pull] = []
        self._answers: list[Answer] = []
        self._pulled: list[Answer] = []
        self._backwards = 0
        self._samples = False
        self._learned: list[Compared] = []
        """What is looked at again at the end."""
        lab.notes["relations"] = []
        Carried(lab, self._add)
        self._loaded = augmentations.LoaderBatch(lab)
        lab.when_trial_ends.append(self._at_the_end)
        lab.wrap(torch, "multinomial", self._sampling)
        for kind in (torch.distributions.Normal, torch.distributions.Categorical, torch.distributions.Bernoulli):
            lab.wrap(kind, "sample", self._sampling)

    def _sampling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def sample(*args: Any, **kwargs: Any) -> Any:
            self._samples = True
            return original(*args, **kwargs)

        return sample

    def was_called(self, called: Called) -> None:
        """Remember its outputs, in case the loss is written out."""
        for output in called.outputs:
            if output.grad_fn is not None and output.is_floating_point() and output.numel() <= LARGEST:
                self._followed.append((called, output, Followed(output)))

    def backward_begins(self, loss: Any, gradient: Any) -> None:
        """Test, and note the answers at once."""
        self._backwards += 1
        try:
            if isinstance(loss, Tensor) and loss.numel() == 1 and loss.grad_fn is not None:
                self._look(loss, gradient)
        except Exception:
            note_failure(self._lab)
        if self._backwards >= BACKWARDS:
            self.is_listening = False
        self._followed.clear()
        self.forget()

    def _look(self, loss: Tensor, gradient: Any) -> None:
        compared = list(self._compared) or self._written_out(loss)
        weight = float(gradient) if isinstance(gradient, Tensor) and gradient.numel() == 1 else 1.0
        pulls = [pull for one in compared if (pull := towards.pull_of(one, loss, weight)) is not None]
        self._pulls += pulls
        if self._backwards == 1:
            used = [pull.compared for pull in pulls]
            models = list(self._called.values())
            self._answers += self._each(Relation.REACH, reach.answers, used)
            self._answers += self._each(Relation.ALIGNMENT, sequences.alignment, used)
            self._answers += self._each(Relation.PADDING, sequences.padding, models)
            self._answers += self._each(Relation.LAYOUT, layout.answers, models)
            places = Places(self._lab.stage)
            steady = self._each(Relation.STEADY, lambda given: steadiness.answers(given, compared, places), models)
            self._loaded.is_listening = False
            moves = self._each(Relation.MOVES, lambda given: augmentations.answers(self._loaded, given), compared)
            self._answers += [*steady, *moves]
            self._learned = [_without_graph(one) for one in compared if one.taken is not None][:1]
        self._pulled = [towards.answer(self._pulls, self._samples)]
        self._note()

    def _add(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._note()

    def _note(self) -> None:
        self._lab.notes["relations"] = msgspec.to_builtins([*self._pulled, *self._answers])

    def _at_the_end(self) -> None:
        """The first batch once more, after all steps."""
        places = Places(self._lab.stage)
        for answer in self._each(Relation.MODES, lambda given: mode_gap.answers(given, places), self._learned):
            self._add(answer)

    def _each(
        self, relation: Relation, test: Callable[[Sequence[Any]], list[Answer]], given: Sequence[Any]
    ) -> list[Answer]:
        """One test that fails costs nothing but itself."""
        self.is_listening = False  # models that are called meanwhile are called by us
        try:
            return guarded(self._lab, relation, lambda: test(given))
        finally:
            self.is_listening = True

    def _written_out(self, loss: Tensor) -> list[Compared]:
        """What a loss compares that is not a function of torch, read from its graph."""
        with torch.no_grad():
            for called, output, followed in self._followed:
                found = comparison_in(loss.grad_fn, followed)
                if found is not None and found.target.numel() in (output.numel(), len(output)):
                    shaped = found.target.numel() == output.numel()
                    target = found.target.reshape(output.shape) if shaped else found.target
                    return [Compared(found.loss, output, target, -100, called, None, None)]
        return []


def _without_graph(compared: Compared) -> Compared:
    """To be kept for later."""
    called = compared.called
    kept = Called(called.module, (), {})
    kept.inputs, kept.outputs = called.inputs, [output.detach() for output in called.outputs]
    return compared._replace(called=kept, prediction=compared.prediction.detach(), target=compared.target.detach())
