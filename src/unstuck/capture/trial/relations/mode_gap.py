"""After some training, are the answers in evaluation mode as good as those in training mode, on the same batch?

Dropout and batch statistics change answers with the mode, and so do modules of the program that ask for it. The mode of
each kind of module is changed alone, to see which one costs the answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from unstuck.capture.live_objects.arguments import call, tensors_in
from unstuck.capture.live_objects.restore import same_pass, untouched
from unstuck.capture.observers.losses import class_axis
from unstuck.capture.places import Places
from unstuck.capture.torch_hooks.hooks import OperationCalls
from unstuck.capture.trial.model_probe import Called, Compared
from unstuck.events import Place
from unstuck.events.losses import BINARY_LOSSES, CLASS_LOSSES, VALUE_LOSSES
from unstuck.findings.relations import Answer, Number, Relation, State

LEARNED = 0.3
"""How far above a guess answers in training mode have to be."""
LOST = 0.5
"""The share of that which evaluation mode has to lose."""
FEWEST = 32
CERTAIN = 4.0
"""Standard errors between the two shares of right answers."""
DRAWS = 3
MOST_COLUMNS = 16
MOST_VALUES = 20_000


class Score(NamedTuple):
    """How good answers are."""

    gained: float
    """Of the way from a guess to answers that are all right."""
    words: str


def answers(compared: Sequence[Compared], places: Places) -> list[Answer]:
    """What the modes cost on the batches of these comparisons, at the weights of now."""
    known = [
        one for one in compared if one.taken is not None and one.name in (*CLASS_LOSSES, *BINARY_LOSSES, *VALUE_LOSSES)
    ]
    why = "Not tested: no output of a model is compared with targets in a known way."
    return [_answer(one.called, one, places) for one in known] or [_is(State.DOES_NOT_APPLY, why)]


def _answer(called: Called, compared: Compared, places: Places) -> Answer:
    model, name = called.module, type(called.module).__name__
    with untouched(model):
        model.train()
        user = [module for module in model.modules() if not _is_of_torch(module)]
        kinds: dict[str, list[nn.Module]] = {
            "batch statistics": [m for m in model.modules() if isinstance(m, _NormBase)],
            "dropout": [m for m in model.modules() if isinstance(m, _DropoutNd)],
        }
        as_trained = [one for _ in range(DRAWS) if (one := _score(called, compared, ())) is not None]
        if not as_trained or _tracks(called):
            why = "changes its statistics" if as_trained else f"has fewer than {FEWEST} answers, or none that differ"
            return _is(State.DOES_NOT_APPLY, f"Not tested: in training mode {name} {why}.")
        # The worst of some draws, so that chance is not what evaluation mode is compared with.
        trained = min(as_trained, key=lambda score: score.gained)
        if trained.gained < LEARNED:
            return _is(State.DOES_NOT_APPLY, f"Not tested: {name} has not learned enough yet ({trained.words}).")
        evaluated = _score(called, compared, list(model.modules()))
        if evaluated is None:
            return _is(State.DOES_NOT_APPLY, f"Not tested: {name} returns something else in evaluation mode.")
        numbers = f"{trained.words} in training mode and {evaluated.words} in evaluation mode, on the same batch"
        if not _loses(trained, evaluated, compared):
            return _is(State.HOLDS, f"The answers of {name} are {numbers}.", model)
        for kind, modules in kinds.items():
            alone = _score(called, compared, modules) if modules else None
            if alone is not None and _loses(trained, alone, compared):
                return _is(State.DOES_NOT_APPLY, f"Explained by {kind}: the answers of {name} are {numbers}.")
        if _has_weights_of_evaluation(called):
            why = "with weights that no gradient trains and training mode does not use, such as averaged ones"
            return _is(State.DOES_NOT_APPLY, f"Not tested: in evaluation mode {name} answers {why}.")
        if _is_shown_targets(called, compared):
            return _is(State.DOES_NOT_APPLY, f"Not tested: {name} is given its targets, and may do without them.")
        for module in user:
            alone = _score(called, compared, [module])
            if alone is not None and _loses(trained, alone, compared):
                return _broken(module, model, places, numbers, trained, evaluated)
    return _is(State.DOES_NOT_APPLY, f"No single module explains that the answers of {name} are {numbers}.")


def _broken(
    module: nn.Module, model: nn.Module, places: Places, numbers: str, trained: Score, evaluated: Score
) -> Answer:
    name = next((name for name, inner in model.named_modules() if inner is module), "")
    kind = type(module).__name__
    named = f"`{name}` ({kind})" if name else kind
    code = getattr(type(module).forward, "__code__", None)
    place = None
    if code is not None and places.is_users(code):
        place = places.of_file(code.co_filename, code.co_firstlineno, 1)
    measures: dict[str, Number] = {
        "module": name or kind,
        "in training mode": trained.gained,
        "in evaluation mode": evaluated.gained,
    }
    return Answer(
        relation=Relation.MODES,
        state=State.BROKEN,
        sentence=f"The answers of {type(model).__name__} are {numbers}; neither dropout nor batch statistics explain "
        f"that, and the mode of {named} alone does.",
        form="branch",
        subject=named.replace("`", ""),
        measures=measures,
        place=place,
    )


def _is(state: State, sentence: str, model: nn.Module | None = None, place: Place | None = None) -> Answer:
    subject = type(model).__name__ if model is not None else ""
    return Answer(relation=Relation.MODES, state=state, sentence=sentence, subject=subject, place=place)


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.split(".")[0] in ("torch", "torchvision")


def _tracks(called: Called) -> bool:
    """Does a module of the program itself follow statistics, which may need more steps than these?"""
    model = called.module
    own = [b for m in model.modules() if not isinstance(m, _NormBase) for b in m.buffers(recurse=False)]
    before = [buffer.detach().clone() for buffer in own]
    with same_pass(model), torch.no_grad():
        call(model, called.inputs)
        return any(not torch.equal(one, other) for one, other in zip(before, own, strict=True))


class _Uses(OperationCalls):
    """Weights without a gradient that operations of torch are given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._frozen = {id(p) for p in model.parameters() if not p.requires_grad}
        self.found: set[int] = set()

    def called(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.found |= self._frozen & {id(tensor) for tensor in tensors_in([args, kwargs])}
        return operation(*args, **kwargs)


def _has_weights_of_evaluation(called: Called) -> bool:
    """Does evaluation mode use frozen weights, as a moving average, that training mode does not?"""
    model = called.module
    uses = []
    for is_training in (True, False):
        model.train(is_training)
        use = _Uses(model)
        with same_pass(model), torch.no_grad(), use:
            call(model, called.inputs)
        uses.append(use.found)
    model.train()
    trained, evaluated = uses
    return bool(evaluated - trained)


def _score(called: Called, compared: Compared, evaluating: Iterable[nn.Module]) -> Score | None:
    """Of a pass in training mode, with these modules in evaluation mode."""
    modules = list(evaluating)
    modes = [(module, module.training) for module in modules]
    for module in modules:
        module.training = False
    try:
        torch.manual_seed(int(torch.randint(2**31, ())))  # another draw each time
        with torch.no_grad():
            prediction = _prediction(called, compared)
    except Exception:
        return None
    finally:
        for module, mode in modes:
            module.training = mode
    return None if prediction is None else _score_of(compared, prediction.float().cpu())


def _prediction(called: Called, compared: Compared) -> Tensor | None:
    taken = compared.taken
    assert taken is not None
    with same_pass(called.module):
        outputs = list(tensors_in(call(called.module, called.inputs)))
        if taken.output >= len(outputs) or outputs[taken.output].shape != called.outputs[taken.output].shape:
            return None
        return outputs[taken.output].detach().clone().flatten()[taken.places].reshape(taken.shape)


def _score_of(compared: Compared, prediction: Tensor) -> Score | None:
    assert compared.taken is not None
    target = compared.taken.target.detach().cpu()
    if not bool(torch.isfinite(prediction).all()):
        return Score(0.0, "not finite")
    if compared.name in CLASS_LOSSES:
        axis = class_axis(prediction)
        right = target.argmax(axis) if target.is_floating_point() else target
        known = (right != compared.ignored) if not target.is_floating_point() else torch.ones_like(right) > 0
        return _share_right(prediction.argmax(axis)[known], right[known])
    if prediction.shape != target.shape:
        return None
    if compared.name in BINARY_LOSSES:
        # Evaluation may return probabilities, and training scores.
        wanted = (target > 0.5).long().flatten()
        both = [_share_right((prediction > limit).long().flatten(), wanted) for limit in (0.0, 0.5)]
        return max((one for one in both if one is not None), key=lambda one: one.gained, default=None)
    return _followed(prediction, target.float())


def _share_right(given: Tensor, right: Tensor) -> Score | None:
    if right.numel() < FEWEST or given.shape != right.shape:
        return None
    _, counts = torch.unique(right, return_counts=True)
    guess = float(counts.max()) / right.numel()
    if guess > 0.9:
        return None
    share = float((given == right).float().mean())
    return Score((share - guess) / (1 - guess), f"{share:.0%} right (a guess: {guess:.0%})")


def _followed(given: Tensor, target: Tensor) -> Score | None:
    """By ranks: evaluation may return the numbers in another unit."""
    columns = list(_columns(given, target))
    if not columns or len(columns[0][0]) < FEWEST:
        return None
    found = [_rank_correlation(one, other) for one, other in columns]
    known = [value for value in found if value is not None]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    return Score(mean, f"{mean:.2f} correlated with the targets")


def _columns(given: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    count = given.numel() // max(1, len(given)) if given.dim() else 1
    if given.dim() > 1 and 1 < count <= MOST_COLUMNS:
        yield from zip(given.reshape(len(given), -1).T, target.reshape(len(target), -1).T, strict=True)
    else:
        yield given.flatten()[:MOST_VALUES], target.flatten()[:MOST_VALUES]


def _rank_correlation(one: Tensor, other: Tensor) -> float | None:
    if not float(other.std(correction=0)):
        return None
    if not float(one.std(correction=0)):
        return 0.0
    ranks = torch.stack([one.argsort().argsort(), other.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


def _loses(trained: Score, evaluated: Score, compared: Compared) -> bool:
    assert compared.taken is not None
    count = compared.taken.target.numel()
    error = math.sqrt(0.5 / count)  # of the difference of two shares, at the most
    lost = trained.gained - evaluated.gained
    return lost >= LOST * trained.gained and lost >= CERTAIN * error / 2


def _is_shown_targets(called: Called, compared: Compared) -> bool:
    """Is one of the inputs the target, or the target of the position before?"""
    assert compared.taken is not None
    target = compared.taken.target
    values = list(called.inputs.values()) if isinstance(called.inputs, dict) else list(called.inputs)
    return any(_holds(tensor, target) for tensor in tensors_in(values))


def _holds(given: Tensor, target: Tensor) -> bool:
    if given.is_floating_point() != target.is_floating_point() or given.numel() < target.numel() // 2:
        return False
    counted = torch.isin(target.flatten(), given.flatten()).float().mean()
    if given.is_floating_point():
        return float(counted) > 0.9
    return given.dim() > 1 and float(counted) > 0.9
