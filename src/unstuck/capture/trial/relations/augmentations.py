"""Does a target move with its image? The same example is drawn several times from the data set, and what a flip, a turn
or a shift did to the image is looked for in its mask, its target image and its boxes. Points of a mirrored face must
exchange left and right as well.

Also for images that the loop changes after the loader gave them. Changes that are not found exactly (small rotations,
zooms, colours) say nothing, and neither do views of which both go into the model. Of several images in an example the
target has to be left behind by all: it may belong to any. Nor does an object that stays where it is while its
background moves say anything.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from unstuck.capture.live_objects.arguments import tensors_in
from unstuck.capture.live_objects.restore import same_random_numbers
from unstuck.capture.trial.lab import Lab, copied
from unstuck.capture.trial.model_probe import Compared
from unstuck.capture.trial.relations.turns import TURNS, UPRIGHT
from unstuck.findings.relations import Answer, Number, Relation, State

EXAMPLES = 8
DRAWS = 6
SECONDS = 4.0
SMALLEST = 8
LARGEST = 1024
"""Pixels along an axis."""
MATCHES = 0.7
"""The correlation from which one draw of an image is another one, moved."""
CLEARLY = 0.1
"""How much better the best movement has to fit than any other kind."""
MASK_MATCHES = 0.8
FAR_OFF = 0.3
"""How much worse a target fits if it is moved as its image was."""
NEAR = 2
"""Pixels by which two movements may differ."""
FEWEST = 3
SHARE = 0.2
"""The share of moved images whose target stays behind."""
BOXES = ("boxes", "bboxes", "keypoints")
LEFT_TO_RIGHT = 1
"""Its number among the flips."""
SAME_POINTS = 0.05
"""Of the spread of points, by which mirrored ones may differ."""
MOSTLY = 0.8
RIM = 2
"""Pixels around the objects of a mask that are compared with them."""
REMAINS = 0.3
"""Of the variance of an image, the mean squared change of an object that stays where it is."""


class Movement(NamedTuple):
    """A flip or turn, then a shift."""

    flip: int
    down: int
    right: int

    @property
    def is_none(self) -> bool:
        """Is the image where it was?"""
        return not self.flip and abs(self.down) <= NEAR and abs(self.right) <= NEAR


FLIPS: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (("shifted", lambda t: t), *TURNS)
UNTURNED = 1 + UPRIGHT
"""The first of them leave width and height as they are."""


class LoaderBatch:
    """Remembers the data set and the last batch of the loader that was asked last."""

    def __init__(self, lab: Lab) -> None:
        self.dataset: Any = None
        self.batch: list[Tensor] = []
        self.is_listening = True
        lab.wrap(DataLoader, "__iter__", self._iterating)

    def _iterating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(loader: DataLoader[Any]) -> Any:
            given = original(loader)
            return self._remembering(loader, given) if self.is_listening else given

        return iterate

    def _remembering(self, loader: DataLoader[Any], batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if self.is_listening:
                self.dataset = loader.dataset
                self.batch = list(tensors_in(copied(batch)))
            yield batch


def answers(loaded: LoaderBatch, compared: Sequence[Compared]) -> list[Answer]:
    """One for the data set and the loop, or why there is none."""
    if loaded.dataset is None:
        return [_is(State.DOES_NOT_APPLY, "Not tested: no batch came from a DataLoader.")]
    pair = _pair(loaded.batch, compared)
    changes: list[Change] = []
    boxes: list[tuple[bool, bool]] = []
    if pair is not None:
        changes += _in_loop(loaded.batch, pair)
    is_mask = pair is not None and _is_mask(loaded.batch[pair.y])
    partners: list[tuple[int, ...]] = []
    for draws in _draws(loaded.dataset):
        if pair is None and not _boxes(draws[0]) and _points(draws[0]) is None:
            break
        changes += _from_draws(draws, pair)
        boxes += _with_boxes(draws)
        partners += _left_and_right(draws)
    if partners and (said := _of_partners(partners)) is not None:
        return [said]
    return [_judged([judged for one in changes if (judged := _moved_with(*one)) is not None], boxes, is_mask)]


def _is(state: State, sentence: str, form: str = "", subject: str = "", **measures: Number) -> Answer:
    return Answer(
        relation=Relation.MOVES, state=state, sentence=sentence, form=form, subject=subject, measures=measures
    )


def _of_partners(seen: Sequence[tuple[int, ...]]) -> Answer | None:
    """Points that should have changed places in flipped images, and kept them."""
    usual = max(set(seen), key=list(seen).count)
    count = list(seen).count(usual)
    pairs = [(i, j) for i, j in enumerate(usual) if i < j]
    if not pairs or count < FEWEST or count < MOSTLY * len(seen):
        return None
    named = " and ".join(f"{i} with {j}" for i, j in pairs)
    return _is(
        State.BROKEN,
        f"In {count} of {len(seen)} draws in which an image is flipped left to right, its points are mirrored and keep "
        f"their numbers, though they lie where others lay: {named}. What was left of its pair is now right.",
        "points",
        "points",
        moved=len(seen),
        behind=count,
        how=f"exchange {named}",
    )


class Pair(NamedTuple):
    """Which tensors of a batch are images and their dense target, and what the model and the loss got of them."""

    xs: tuple[int, ...]
    y: int
    given: dict[int, Tensor]
    """What the model got, where it is known of which image."""
    target: Tensor


class Change(NamedTuple):
    """The images of an example with what became of them, and its target."""

    images: list[tuple[Tensor, Tensor]]
    target: Tensor
    other: Tensor


class Moved(NamedTuple):
    """An image and its target, and how each of them was moved."""

    movement: Movement
    of_target: Movement
    is_behind: bool


def _judged(moved: list[Moved], boxes: list[tuple[bool, bool]], is_mask: bool) -> Answer:
    if boxes and sum(fixed for _, fixed in boxes) == len(boxes) >= FEWEST:
        return _is(
            State.BROKEN,
            f"In {len(boxes)} of {len(boxes)} draws in which an image is flipped or shifted, its boxes stay where they "
            "are.",
            "boxes",
            "boxes",
            moved=len(boxes),
            behind=len(boxes),
        )
    if not moved:
        if boxes:
            return _is(State.HOLDS, f"Boxes change with their images in {len(boxes)} draws.")
        return _is(State.DOES_NOT_APPLY, "Not tested: no image with a mask or a target image is clearly moved.")
    behind = [one for one in moved if one.is_behind]
    if len(behind) >= FEWEST and len(behind) >= SHARE * len(moved):
        target = "mask" if is_mask else "target image"
        kinds = [_difference(one, target) for one in behind]
        how = max(dict.fromkeys(kinds), key=kinds.count)
        return _is(
            State.BROKEN,
            f"In {len(behind)} of {len(moved)} draws in which an image is moved or its target is, the two do not move "
            f"alike: most often {how}.",
            "mask" if is_mask else "image",
            target,
            moved=len(moved),
            behind=len(behind),
            how=how,
        )
    return _is(State.HOLDS, f"Targets move with their images in {len(moved) - len(behind)} of {len(moved)} draws.")


def _difference(moved: Moved, target: str) -> str:
    image, other = moved.movement.flip, moved.of_target.flip
    if image == other:
        return f"the {target} is shifted by other amounts than the image"
    if image and other:
        return f"the image is {FLIPS[image][0]} and the {target} {FLIPS[other][0]}"
    one, rest = ("image", target) if image else (target, "image")
    return f"the {one} is {FLIPS[image or other][0]} and the {rest} is not"


def _pair(batch: Sequence[Tensor], compared: Sequence[Compared]) -> Pair | None:
    for one in compared:
        values = one.called.inputs.values() if isinstance(one.called.inputs, dict) else one.called.inputs
        for given in tensors_in(list(values)):
            if given.dim() != 4 or not given.is_floating_point():
                continue
            target = one.target.detach()
            y = next((i for i, t in enumerate(batch) if _is_dense(t, given) and _fits(t, target)), None)
            if y is None:
                continue
            xs = tuple(i for i, t in enumerate(batch) if i != y and _is_image(t, given))
            if any(batch[x].shape == given.shape for x in xs):
                return Pair(xs, y, _given(batch, xs, list(tensors_in(list(values)))), target.reshape(batch[y].shape))
    return None


def _is_image(tensor: Tensor, given: Tensor) -> bool:
    is_alike = tensor.dim() == 4 and len(tensor) == len(given) and tensor.shape[-2:] == given.shape[-2:]
    is_picture = tensor.is_floating_point() or tensor.dtype is torch.uint8
    return is_alike and is_picture and float(tensor.float().std(correction=0)) > 0


def _given(batch: Sequence[Tensor], xs: Sequence[int], inputs: Sequence[Tensor]) -> dict[int, Tensor]:
    """By content; a single image also by shape, since the loop may have changed its colours."""
    shaped = {x: [given for given in inputs if given.shape == batch[x].shape] for x in xs}
    if len(xs) == 1:
        return {x: given[0].detach() for x, given in shaped.items() if len(given) == 1}
    fitting = {x: [given for given in of_shape if _fits(batch[x], given)] for x, of_shape in shaped.items()}
    return {x: given[0].detach() for x, given in fitting.items() if len(given) == 1}


def _is_dense(target: Tensor, images: Tensor) -> bool:
    return target.dim() in (3, 4) and len(target) == len(images) and target.shape[-2:] == images.shape[-2:]


def _fits(given: Tensor, target: Tensor) -> bool:
    """Has the loss been given this tensor of the batch, perhaps with its pixels moved?"""
    if given.numel() != target.numel():
        return False
    one, other = given.detach().float().flatten().cpu(), target.float().flatten().cpu()
    return bool(torch.isfinite(one).all() and torch.isfinite(other).all()) and torch.allclose(
        one.sort().values, other.sort().values, atol=1e-4
    )


def _is_mask(target: Tensor) -> bool:
    return not target.is_floating_point() or torch.unique(target).numel() <= 2


def _in_loop(batch: Sequence[Tensor], pair: Pair) -> Iterator[Change]:
    """The images and targets of a batch before and after what the loop does with them."""
    if set(pair.given) != set(pair.xs):
        return
    for row in range(min(EXAMPLES, len(pair.target))):
        images = [(batch[x][row], given[row]) for x, given in pair.given.items()]
        yield Change(images, batch[pair.y][row], pair.target[row])


def _draws(dataset: Any) -> Iterator[list[Any]]:
    """The same few examples, each drawn several times."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not len(dataset):
        return
    began, count = time.monotonic(), len(dataset)
    with same_random_numbers():
        for index in sorted({round(i * (count - 1) / max(1, EXAMPLES - 1)) for i in range(EXAMPLES)}):
            draws = []
            for _ in range(DRAWS):
                if time.monotonic() - began > SECONDS:
                    return
                draws.append(dataset[index])
            yield draws


def _from_draws(draws: Sequence[Any], pair: Pair | None) -> Iterator[Change]:
    """The first draw against each of the others."""
    if pair is None:
        return
    wanted = (*pair.xs, pair.y)
    tensors = [list(tensors_in(draw)) for draw in draws]
    if any(len(one) <= max(wanted) for one in tensors):
        return
    first = tensors[0]
    for other in tensors[1:]:
        if all(first[i].shape == other[i].shape for i in wanted):
            yield Change([(first[x], other[x]) for x in pair.xs], first[pair.y], other[pair.y])


def _with_boxes(draws: Sequence[Any]) -> Iterator[tuple[bool, bool]]:
    """Of draws in which the image moved: moved, and did the boxes stay exactly as they were?"""
    known = [(image, boxes) for draw in draws if (image := _image(draw)) is not None and (boxes := _boxes(draw))]
    if len(known) < 2:
        return
    image, boxes = known[0]
    for other, others in known[1:]:
        movement = _movement(image, other) if image.shape == other.shape else None
        if movement is not None and not movement.is_none:
            fixed = len(boxes) == len(others) and all(torch.equal(a, b) for a, b in zip(boxes, others, strict=True))
            yield True, fixed


def _image(draw: Any) -> Tensor | None:
    return next((t for t in tensors_in(draw) if t.dim() == 3 and min(t.shape[-2:]) >= SMALLEST), None)


def _boxes(draw: Any) -> list[Tensor]:
    """Tensors that are called boxes or key points."""
    parts = draw if isinstance(draw, tuple | list) else [draw]
    found = [part[name] for part in parts if isinstance(part, Mapping) for name in BOXES if name in part]
    return [t for t in found if isinstance(t, Tensor) and t.dim() in (2, 3) and t.shape[-1] in (2, 3, 4) and t.numel()]


def _points(draw: Any) -> Tensor | None:
    """Places in the image, one in each row."""
    found = [t for t in tensors_in(draw) if t.is_floating_point() and t.dim() == 2 and t.shape[1] == 2 and len(t) > 1]
    return found[0].detach() if len(found) == 1 else None


def _left_and_right(draws: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Of draws in which the image was flipped and its points were mirrored in the same order: for each point the number
    of the one that lay there before. The layout is its own mirror image only where points come in pairs."""
    known = [
        (image, points)
        for draw in draws
        if (image := _image(draw)) is not None and (points := _points(draw)) is not None
    ]
    for other, after in known[1:]:
        image, before = known[0]
        movement = _movement(image, other) if image.shape == other.shape and before.shape == after.shape else None
        if movement is None or movement.flip != LEFT_TO_RIGHT:
            continue
        sums = before[:, 0] + after[:, 0]
        scale = float(before.std())
        steady = float((before[:, 1] - after[:, 1]).std()) + float(sums.std())
        if scale > 0 and steady < SAME_POINTS * scale:
            centred = [points - points.mean(0) for points in (before, after)]
            lay = torch.cdist(centred[1], centred[0]).argmin(1).tolist()
            is_exchange = all(lay[j] == i for i, j in enumerate(lay))
            yield tuple(lay) if is_exchange else tuple(range(len(lay)))


def _moved_with(images: Sequence[tuple[Tensor, Tensor]], target: Tensor, its: Tensor) -> Moved | None:
    """None where nothing moved, or where it is not clear how. Left behind by all images, or by none."""
    own = _best(target, its)
    if own is None or own[1] < MASK_MATCHES:
        return None
    found = [_moved(image, other, target, its, own) for image, other in images]
    known = [one for one in found if one is not None]
    if len(known) < len(found) or all(one.movement.is_none and one.of_target.is_none for one in known):
        return None
    return next((one for one in known if not one.is_behind), known[0])


def _moved(image: Tensor, other: Tensor, target: Tensor, its: Tensor, own: tuple[Movement, float]) -> Moved | None:
    """None where it is not clear how."""
    movement = _movement(image, other)
    if movement is None or (own[0].is_none and not movement.is_none and _stays_there(image, other, target)):
        return None
    return Moved(movement, own[0], own[1] - _score_near(target, its, movement) >= FAR_OFF)


def _stays_there(image: Tensor, other: Tensor, target: Tensor) -> bool:
    """Does what a mask marks stay where it is, while the rest of the image moves?"""
    marked = target.detach().cpu().reshape(-1, *target.shape[-2:])
    marked = (marked != marked.flatten().mode().values).any(0)
    rim = F.max_pool2d(marked[None, None].float(), 2 * RIM + 1, 1, RIM)[0, 0] > 0
    one, its = (t.detach().cpu().float().reshape(-1, *t.shape[-2:]) for t in (image, other))
    if not bool(marked.any()):
        return False
    changed = (one - its)[:, marked].square().mean()
    if float(changed) <= REMAINS * float(one.var(correction=0)):
        return True
    return float(torch.corrcoef(torch.stack([one[:, rim].flatten(), its[:, rim].flatten()]))[0, 1]) >= MATCHES


def _movement(image: Tensor, other: Tensor) -> Movement | None:
    """How an image was moved to become the other, if that is clear."""
    found = dict(_peaks(image, other))
    if not found:
        return None
    best = max(found, key=lambda movement: found[movement])
    next_best = max((value for movement, value in found.items() if movement.flip != best.flip), default=0.0)
    return best if found[best] >= MATCHES and found[best] - next_best >= CLEARLY else None


def _best(image: Tensor, other: Tensor) -> tuple[Movement, float] | None:
    """Staying where it is wins where that fits as well."""
    found = dict(_peaks(image, other))
    if not found:
        return None
    still = next((movement for movement in found if movement.is_none), None)
    best = max(found, key=lambda movement: found[movement])
    return (still, found[still]) if still and found[still] >= found[best] - 1e-3 else (best, found[best])


def _peaks(image: Tensor, other: Tensor) -> Iterator[tuple[Movement, float]]:
    """For each flip and turn, the shift that fits best, and its correlation."""
    for index, surface in _surfaces(image, other):
        place = int(surface.argmax())
        height, width = surface.shape
        down, right = divmod(place, width)
        yield Movement(index, _signed(down, height), _signed(right, width)), float(surface.flatten()[place])


def _score_near(image: Tensor, other: Tensor, movement: Movement) -> float:
    """The best correlation of a movement like this one."""
    for index, surface in _surfaces(image, other, (movement.flip,)):
        if index == movement.flip:
            near = [
                float(surface[(movement.down + i) % surface.shape[0], (movement.right + j) % surface.shape[1]])
                for i in range(-NEAR, NEAR + 1)
                for j in range(-NEAR, NEAR + 1)
            ]
            return max(near)
    return 0.0


def _surfaces(image: Tensor, other: Tensor, flips: Iterable[int] | None = None) -> Iterator[tuple[int, Tensor]]:
    """Correlations for all shifts at once, per flip."""
    first, second = _planes(image), _planes(other)
    if first is None or second is None or first.shape != second.shape:
        return
    height, width = first.shape[-2:]
    wanted = flips if flips is not None else range(len(FLIPS) if height == width else UNTURNED)
    size = math.sqrt(float(first.square().sum()) * float(second.square().sum()))
    if size <= 0 or not math.isfinite(size):
        return
    turned = torch.fft.rfft2(second)
    for index in wanted:
        product = turned * torch.fft.rfft2(FLIPS[index][1](first)).conj()
        yield index, torch.fft.irfft2(product, s=(height, width)).sum(0) / size


def _planes(image: Tensor) -> Tensor | None:
    """The channels of an image, or the numbers of a mask; each around 0."""
    planes = image.detach().cpu()
    if planes.dim() == 2:
        planes = planes.unsqueeze(0)
    height, width = planes.shape[-2:]
    if planes.dim() != 3 or not SMALLEST <= min(height, width) <= max(height, width) <= LARGEST:
        return None
    planes = planes.float()
    return planes - planes.mean((-2, -1), keepdim=True)


def _signed(shift: int, size: int) -> int:
    return shift - size if shift > size // 2 else shift
