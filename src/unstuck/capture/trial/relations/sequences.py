"""Sequences: do targets stand at the position of the input they belong to, and does padding change other answers?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unstuck.capture.live_objects.arguments import call, tensors_in
from unstuck.capture.live_objects.passes import change
from unstuck.capture.live_objects.restore import same_pass, untouched
from unstuck.capture.observers.losses import class_axis
from unstuck.capture.trial.lab import map_tensors
from unstuck.capture.trial.model_probe import Called, Compared
from unstuck.capture.trial.relations.maps import turned
from unstuck.events.losses import CLASS_LOSSES
from unstuck.findings.relations import Answer, Relation, State

SHIFTS = (-3, -2, -1, 0, 1, 2, 3)
NEARLY_ALL = 0.98
"""The share of targets that equal the inputs so many positions on."""
FEWEST_POSITIONS = 6
FEWEST_TARGETS = 256
"""Targets from which a linear fit is trusted."""
MOST_TARGETS = 20_000
MOST_IDS = 512
FITS = 0.5
"""The share of variance that a shifted target must have explained, held out,"""
AHEAD = 0.3
"""and how much more that must be than without the shift."""
RIDGE = 1e-2
REPEATS = 0.1
"""How much more often than by chance a token of a text is followed by the same one again."""
MORE = 1.3
MUCH_MORE = 2.0
MOST_PAIRS = 2_000
MATTERS = 0.05
"""The change of an answer, in spreads of the answers, from which padding matters."""


class Aligned(NamedTuple):
    """Targets, each with the row and position of the output that it is compared with."""

    rows: Tensor
    positions: Tensor
    targets: Tensor
    length: int
    examples: int


def _is(
    relation: Relation,
    state: State,
    sentence: str,
    form: str = "",
    subject: str = "",
    measures: dict[str, bool | int | float | str | None] | None = None,
    compared: Compared | None = None,
) -> Answer:
    return Answer(
        relation=relation,
        state=state,
        sentence=sentence,
        form=form,
        subject=subject,
        measures=measures or {},
        place=compared.place if compared else None,
    )


def alignment(compared: Sequence[Compared]) -> list[Answer]:
    """Are targets those of their own position, or of the next one where inputs are predicted? Do maps lie as images?"""
    found = [answer for one in compared for answer in (*turned(one), *_across(one))]
    broken = [answer for answer in found if answer.state is State.BROKEN]
    if broken:
        return broken[:1]
    for one in compared:
        aligned = _aligned(one)
        if aligned is not None:
            given = _sequences(one.called.inputs, aligned.examples, aligned.length)
            found += [_alignment(one, aligned, tensor.detach().cpu()) for tensor in given]
    # One head may look further ahead than another; one that fits shows that the data are in order.
    order = (State.HOLDS, State.BROKEN, State.DOES_NOT_APPLY)
    if found:
        return [min(found, key=lambda answer: order.index(answer.state))]
    why = "Not tested: no loss has one target for each position of an input sequence or image."
    return [_is(Relation.ALIGNMENT, State.DOES_NOT_APPLY, why)]


def _aligned(compared: Compared) -> Aligned | None:
    """Where in the model's output [N, T, ...] each target belongs."""
    taken, target = compared.taken, compared.target.detach()
    if taken is None:
        return None
    output = compared.called.outputs[taken.output]
    places = taken.places.reshape(taken.shape)
    if compared.name in CLASS_LOSSES:
        if target.is_floating_point():
            return None
        places = places.movedim(class_axis(places), -1)[..., 0] if places.dim() > 1 else places
    if output.dim() not in (2, 3) or places.shape != target.shape or output.shape[1] < FEWEST_POSITIONS:
        return None
    inner = output[0, 0].numel()
    positions = places.flatten() // inner
    positions = positions.to(target.device)
    known = target.flatten() != compared.ignored if not target.is_floating_point() else torch.ones_like(positions) > 0
    # One target for each position.
    if len(torch.unique(positions)) != positions.numel():
        return None
    length = output.shape[1]
    rows, columns, targets = (
        values[known].cpu() for values in (positions // length, positions % length, target.flatten())
    )
    return Aligned(rows, columns, targets, length, len(output))


def _across(compared: Compared) -> Iterator[Answer]:
    """The next token, sought along one axis of the ids, while the text runs along the other."""
    target = compared.target.detach()
    for ids in tensors_in(compared.called.inputs):
        if ids.dim() != 2 or ids.is_floating_point() or ids.numel() != target.numel() or min(ids.shape) < 4:
            continue
        following = target.reshape(ids.shape)
        for axis in (0, 1):
            length, others = ids.shape[axis] - 1, ids.shape[1 - axis] - 1
            own = following.narrow(axis, 0, length)
            if own.is_floating_point() or float((own == ids.narrow(axis, 1, length)).float().mean()) < NEARLY_ALL:
                continue
            rows = ids.narrow(1 - axis, 0, others)
            along = _repeats(ids.narrow(axis, 0, length), own)
            # Where each position has tokens of its own, any other row tells as much as the next one.
            anywhere = torch.randperm(others, generator=torch.Generator().manual_seed(1)).to(ids.device)
            across = _repeats(rows, ids.narrow(1 - axis, 1, others))
            by_position = _repeats(rows, rows.index_select(1 - axis, anywhere))
            if across >= max(REPEATS, MORE * along, MUCH_MORE * by_position):
                yield _is(
                    Relation.ALIGNMENT,
                    State.BROKEN,
                    f"The target of a token is the next one along axis {axis} of the ids ({list(ids.shape)}), but the "
                    f"text runs along axis {1 - axis}: how often the same token follows the same token is above chance "
                    f"by {across:.0%} there, and by {max(0.0, along):.0%} along axis {axis}.",
                    "across",
                    "targets",
                    {"axis": axis, "fit": across, "fit as it is": along},
                    compared,
                )


def _repeats(first: Tensor, second: Tensor) -> float:
    """How much more often than by chance two equal ids are followed by equal ids."""
    first, second = first.flatten()[:MOST_PAIRS], second.flatten()[:MOST_PAIRS]
    same = torch.triu(first[:, None] == first, 1)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(len(second), generator=generator).to(second.device) for _ in range(9)]
    return _agreement(same, second) - sum(_agreement(same, second[order]) for order in orders) / len(orders)


def _agreement(same: Tensor, second: Tensor) -> float:
    return float((second[:, None] == second)[same].float().mean()) if same.any() else 0.0


def _sequences(inputs: Any, examples: int, length: int) -> Iterator[Tensor]:
    for tensor in tensors_in(list(inputs.values()) if isinstance(inputs, dict) else list(inputs)):
        if tensor.dim() in (2, 3) and tensor.shape[:2] == (examples, length) and tensor.dtype is not torch.bool:
            yield tensor


def _alignment(compared: Compared, aligned: Aligned, given: Tensor) -> Answer:
    shares = {shift: _equal(aligned, given, shift) for shift in SHIFTS}
    best = max(shares, key=lambda shift: shares[shift])
    if shares[best] >= NEARLY_ALL and not compared.target.is_floating_point():
        if best in (0, 1):
            how = "the next input" if best else "the input itself, as of an autoencoder"
            return _is(Relation.ALIGNMENT, State.HOLDS, f"The target of each position is {how}.", compared=compared)
        where = f"{best} positions after" if best > 0 else f"{-best} position{'s' if best < -1 else ''} before"
        return _is(
            Relation.ALIGNMENT,
            State.BROKEN,
            f"The target of a position is the input {where} it ({shares[best]:.0%} of {len(aligned.targets):,} "
            "targets), not the next one.",
            "shifted",
            "targets",
            {"shift": best, "share": shares[best]},
            compared,
        )
    fits = {shift: fit for shift in SHIFTS if (fit := _fit(aligned, given, shift)) is not None}
    if 0 not in fits:
        why = "Not tested: too few targets, or too many different ones, to see to which position they belong."
        return _is(Relation.ALIGNMENT, State.DOES_NOT_APPLY, why)
    best = max(fits, key=lambda shift: fits[shift])
    numbers = f"{max(0.0, fits[best]):.0%} instead of {max(0.0, fits[0]):.0%}"
    if best != 0 and fits[best] >= FITS and fits[best] - max(0.0, fits[0]) >= AHEAD:
        where = f"{abs(best)} position{'s' if abs(best) > 1 else ''} {'later' if best > 0 else 'earlier'}"
        return _is(
            Relation.ALIGNMENT,
            State.BROKEN,
            f"Targets belong to the inputs {where}: from these a linear fit explains {numbers} of their variance, held "
            "out.",
            "misaligned",
            "targets",
            {"shift": best, "fit": fits[best], "fit as it is": fits[0]},
            compared,
        )
    return _is(
        Relation.ALIGNMENT,
        State.HOLDS,
        f"No shift of the targets by up to {SHIFTS[-1]} positions fits the inputs much better.",
        compared=compared,
    )


def _equal(aligned: Aligned, given: Tensor, shift: int) -> float:
    """The share of targets that are the input so many positions on."""
    if given.is_floating_point() or given.dim() != 2:
        return 0.0
    where = aligned.positions + shift
    inside = (where >= 0) & (where < aligned.length)
    if int(inside.sum()) < FEWEST_POSITIONS:
        return 0.0
    values = given[aligned.rows[inside], where[inside]]
    targets = aligned.targets[inside]
    if torch.unique(targets).numel() < 3:
        return 0.0
    return float((values == targets).float().mean())


def _fit(aligned: Aligned, given: Tensor, shift: int) -> float | None:
    """The share of the targets' variance that the input so many positions on explains, on examples held out."""
    where = aligned.positions + shift
    most = SHIFTS[-1]
    inside = (aligned.positions >= most) & (aligned.positions < aligned.length - most)
    inside &= (where >= 0) & (where < aligned.length)
    rows, where, targets = (values[inside][:MOST_TARGETS] for values in (aligned.rows, where, aligned.targets))
    examples = torch.unique(rows)
    if len(rows) < FEWEST_TARGETS or len(examples) < 4:
        return None
    x, y = _columns(given[rows, where]), _columns(targets)
    if x is None or y is None or len(x) < 8 * x.shape[1]:
        return None
    train = rows < examples[len(examples) // 2]
    if int(train.sum()) < FEWEST_TARGETS // 4 or int((~train).sum()) < FEWEST_TARGETS // 4:
        return None
    mean, spread = x[train].mean(0), x[train].std(0).clamp_min(1e-6)
    x = torch.cat([(x - mean) / spread, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    own = x[train].T @ x[train] + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(own, x[train].T @ y[train])
    rest = (y[~train] - x[~train] @ weights).square().sum()
    total = (y[~train] - y[train].mean(0)).square().sum()
    return float(1 - rest / total) if float(total) > 0 else None


def _columns(values: Tensor) -> Tensor | None:
    """Numbers as they are, ids as one column each; None if there are too many."""
    if values.is_floating_point():
        return values.double().reshape(len(values), -1).cpu()
    known, index = torch.unique(values.reshape(len(values), -1)[:, 0], return_inverse=True)
    return F.one_hot(index.cpu(), len(known)).double() if 2 <= len(known) <= MOST_IDS else None


def padding(models: Sequence[Called]) -> list[Answer]:
    """Cut the padding off the short examples: do their answers change?"""
    for called in models:
        found = _padding(called)
        if found is not None:
            return [found]
    return [_is(Relation.PADDING, State.DOES_NOT_APPLY, "Not tested: no input is a batch of ids that is padded.")]


def _padding(called: Called) -> Answer | None:
    values = list(called.inputs.values()) if isinstance(called.inputs, dict) else list(called.inputs)
    for ids in tensors_in(values):
        padded = _padded(ids)
        if padded is None:
            continue
        pad, lengths = padded
        with contextlib.suppress(Exception):
            return _without_padding(called, ids, lengths, pad)
    return None


def _padded(ids: Tensor) -> tuple[int, Tensor] | None:
    """The id that only ends rows, in different numbers, and how long the rows are without it."""
    if ids.dim() != 2 or ids.is_floating_point() or ids.dtype is torch.bool or ids.shape[1] < FEWEST_POSITIONS:
        return None
    values, counts = torch.unique(ids[:, -1], return_counts=True)
    pad = int(values[counts.argmax()])
    own = ids != pad
    positions = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    lengths = (own * positions).amax(1)
    is_tail = torch.equal(own, positions <= lengths.unsqueeze(1))
    differ = torch.unique(lengths).numel() > 2 and int(lengths.min()) > 0 and torch.unique(ids[own]).numel() > 2
    return (pad, lengths) if is_tail and differ else None


def _without_padding(called: Called, ids: Tensor, lengths: Tensor, pad: int) -> Answer | None:
    model = called.module
    short = int(lengths.sort().values[len(lengths) // 2])
    rows = (lengths <= short).nonzero().flatten()
    examples, length = ids.shape
    if short >= length or len(rows) < 2:
        return None

    def chosen(tensor: Tensor, until: int) -> Tensor:
        if not tensor.dim() or len(tensor) != examples:
            return tensor
        part = tensor[rows]
        return part[:, :until] if part.dim() > 1 and part.shape[1] == length else part

    def answers(until: int) -> list[Tensor]:
        with same_pass(model):
            inputs = map_tensors(called.inputs, lambda tensor: chosen(tensor, until))
            return [one.detach().clone() for one in tensors_in(call(model, inputs)) if one.is_floating_point()]

    with untouched(model), torch.no_grad():
        model.eval()
        long, again, cut = answers(length), answers(length), answers(short)
    if change(long, again) > 0:
        return None
    own = torch.arange(short, device=ids.device) < lengths[rows].unsqueeze(1)
    pairs = []
    for whole, part in zip(long, cut, strict=False):
        if whole.shape == part.shape and len(whole) == len(rows):
            pairs.append((whole, part))
        elif whole.dim() > 1 and whole.shape[:2] == (len(rows), length) and part.shape[1] == short:
            pairs.append((whole[:, :short][own], part[own]))
    if not pairs:
        return None
    most = change([one for one, _ in pairs], [other for _, other in pairs])
    numbers = f"{len(rows)} examples of up to {short} ids, padded with {pad} to {length}"
    measures = {"change": most, "examples": len(rows), "pad": pad, "length": length, "short": short}
    if most >= MATTERS:
        return _is(
            Relation.PADDING,
            State.BROKEN,
            f"With the padding cut off, the outputs of {type(model).__name__} for {numbers}, change by up to "
            f"{most:.2g} times their spread (in evaluation mode).",
            "padding",
            type(model).__name__,
            {**measures},
        )
    return _is(
        Relation.PADDING, State.HOLDS, f"With the padding cut off, the outputs for {numbers}, stay the same.",
        measures={**measures},
    )  # fmt: skip
