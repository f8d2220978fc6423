"""Examples of ours in place of the script's: inputs of the same shape, type and range, and targets that can be learned
from them by a linear model as by a convolution or a sequence model.

The first steps are the script's own: they show what targets there are. Then every example is a new one, so that none
can be memorized. What is hidden in an input is a code: a class, some bits, some numbers. Tables, signals and images
contain a pattern for each part of the code, tokens are drawn more often from those that go with it, and where there is
a target for each position or pixel, the input is made from its target there.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unstuck.capture.trial.lab import Lab
from unstuck.capture.trial.stand_ins.boundary import Compared, Named, boundary_of, read_tensors
from unstuck.capture.trial.stand_ins.fitting import Kind
from unstuck.capture.trial.stand_ins.networks import Input, kind_of, main_of

SEED = 20_262
WATCHED = 2
"""Steps with the script's own data, before ours."""
MOST_CLASSES = 10
NOISE = 0.5
PREFERRED = 0.6
"""How often a token is one of those that go with the code."""
FOLLOWS = 0.9
"""How often a token is followed by the one that the rule says."""
MOST_TOKENS = 64
SANE = (0.01, 10.0)
"""Deviations of numbers to predict that are taken over; others become 1."""
LEVELS = (-1.34, -0.45, 0.45, 1.34)
"""Four numbers with mean 0 and deviation 1."""


class Wanted(NamedTuple):
    """What the targets of a loss look like."""

    kind: Kind
    columns: int
    """Classes, or numbers for each example."""
    by: str
    """`example`, `position` or `pixel`."""
    mean: float
    spread: float
    is_input: bool
    """Is the target what the model was given, as in an autoencoder?"""
    one_hot: bool
    same_tokens: bool
    """Are targets tokens as the inputs are?"""


class Drawn(NamedTuple):
    """Inputs of ours, and what makes their targets."""

    given: Tensor
    code: Tensor
    """Classes or numbers: one row for each example, with further axes for positions or pixels."""


class StandInExamples:
    """Watches for a while, then exchanges inputs and targets together."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._boundary = boundary_of(lab)
        self._generator = torch.Generator().manual_seed(SEED)
        self._wanted: Wanted | None = None
        self._module = 0
        self._name = ""
        self._scales: tuple[Tensor, Tensor, float, float] | None = None
        self._patterns: dict[tuple[int, ...], Tensor] = {}
        self._tokens: Tensor | None = None
        self._fixed: Tensor | None = None
        self._swapped = 0
        self._notes = lab.notes["data"] = {
            "swapped": 0,
            "missed": 0,
            "why": "no loss compares its outputs with targets, one by one",
            "scale": None,
        }
        self._boundary.inputs.append(self._give)
        self._boundary.targets.append(self._target)
        self._boundary.compared.append(self._listen)
        self._boundary.counts = lambda compared: compared.call.data is not None and self._is_swapped(compared)
        self._last: Compared | None = None

    def _listen(self, compared: Compared) -> None:
        if compared.is_written:
            self._notes["why"] = "the loss is a formula, in which targets cannot be exchanged"

    def _is_swapped(self, compared: Compared) -> bool:
        return self._last is compared

    def _give(self, module: nn.Module, named: Named) -> tuple[Named, Any]:
        wanted = self._wanted
        if wanted is None or id(module) != self._module:
            return named, None
        read = read_tensors(named)
        index = main_of([tensor for _, tensor in read]) if read else 0
        if not read or read[index][1].requires_grad:
            return named, None
        main = read[index][1]
        drawn = self._draw(main, wanted)
        if drawn is None:
            return named, None
        return [(name, _exchanged(value, main, drawn.given)) for name, value in named], drawn

    def _target(self, compared: Compared) -> Tensor | None:
        drawn: Drawn | None = compared.call.data
        if drawn is None:
            self._watch(compared)
            # Numbers far out would leave their mark on the state of the optimizer: until ours come, nothing is learned.
            same = compared.target.is_floating_point() and compared.target.shape == compared.source.shape
            return compared.source.detach().to(compared.target.dtype) if same else None
        wanted = self._wanted
        made = None if wanted is None else _target_of(drawn, wanted, compared)
        if made is None:
            self._notes["missed"] += 1
            return None
        self._notes["swapped"] += 1
        self._last = compared
        return made

    def _watch(self, compared: Compared) -> None:
        """Until it is known what is wanted."""
        inputs = [tensor for _, tensor in compared.call.inputs]
        if self._wanted is not None or not inputs or self._lab.steps + 1 < WATCHED:
            return
        main = inputs[main_of(inputs)]
        if main.requires_grad:
            self._notes["why"] = "what the model is given was computed by another one"
            return
        wanted = _wanted(main, compared)
        if wanted is None:
            self._notes["why"] = "how its targets belong to its inputs is not known"
            return
        self._wanted, self._module, self._notes["why"] = wanted, id(compared.call.module), ""
        self._notes |= {"by": wanted.by, "kind": str(wanted.kind), "scale": [wanted.mean, wanted.spread]}
        if main.is_floating_point():
            self._scales = _scales(main)
        elif main.dim() == 2:
            # Columns that are the same in all examples, such as a first token, stay.
            self._fixed = (main == main[:1]).all(0) if len(main) > 1 else torch.zeros_like(main[0], dtype=torch.bool)
            found = main[:, ~self._fixed].reshape(-1)
            counts = torch.bincount(found.long()) if len(found) and int(found.min()) >= 0 else found.new_zeros(0)
            frequent = counts.argsort(descending=True)[: min(MOST_TOKENS, int((counts > 0).sum()))]
            self._tokens = frequent.sort().values

    def _draw(self, main: Tensor, wanted: Wanted) -> Drawn | None:
        try:
            match kind_of(main):
                case Input.TOKENS if wanted.by == "position":
                    return self._chain(main, wanted)
                case Input.TOKENS:
                    return self._bags(main, wanted)
                case Input.IDS:
                    return Drawn(main, _of_ids(main, wanted))
                case Input.IMAGE if wanted.by == "pixel":
                    return self._regions(main, wanted)
                case Input.SEQUENCE if wanted.by == "position":
                    return self._steps(main, wanted)
                case Input.OTHER:
                    return None
        except RuntimeError as error:
            self._notes["why"] = str(error).splitlines()[0]
            return None
        return self._mixed(main, wanted)

    def _scaled(self, main: Tensor, standard: Tensor) -> Tensor:
        """Brings numbers of deviation 1 into the range of the script's inputs."""
        assert self._scales is not None
        mean, spread, low, high = self._scales
        made = mean + spread * standard.to(main.device)
        return made.clamp(low, high).to(main.dtype) if low >= 0 else made.to(main.dtype)

    def _randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def _codes(self, size: int, wanted: Wanted, most: int) -> tuple[Tensor, Tensor]:
        """For each of so many, its code as a row of numbers, and what its target is made of."""
        if wanted.kind is Kind.CLASSES:
            count = max(2, min(wanted.columns, MOST_CLASSES, most + 1))
            classes = torch.randint(count, (size,), generator=self._generator)
            return F.one_hot(classes, count).float(), _spread_out(classes, count, wanted.columns)
        count = max(1, min(wanted.columns, 8 if wanted.kind is Kind.BINARY else 4, most))
        if wanted.kind is Kind.BINARY:
            bits = torch.randint(2, (size, count), generator=self._generator)
            return 2.0 * bits - 1, bits
        numbers = self._randn(size, count)
        return numbers, numbers

    def _mixed(self, main: Tensor, wanted: Wanted) -> Drawn:
        """Patterns in noise."""
        shape = tuple(main.shape[1:]) or (1,)
        rows, code = self._codes(len(main), wanted, math.prod(shape))
        patterns = self._pattern(rows.shape[1], shape)
        signal = (rows @ patterns.reshape(len(patterns), -1)).reshape(len(main), *shape)
        if wanted.kind is not Kind.CLASSES:
            signal = signal / math.sqrt(rows.shape[1])
        standard = (signal + NOISE * self._randn(len(main), *shape)).reshape(main.shape)
        given = self._scaled(main, standard)
        return Drawn(given, given if wanted.is_input else code)

    def _pattern(self, count: int, shape: tuple[int, ...]) -> Tensor:
        key = (count, *shape)
        if key not in self._patterns:
            generator = torch.Generator().manual_seed(SEED + count)
            self._patterns[key] = _patterns(count, shape, generator)
        return self._patterns[key]

    def _steps(self, main: Tensor, wanted: Wanted) -> Drawn:
        """Vectors in a sequence, each made from its own target."""
        size, length, width = main.shape
        rows, code = self._codes(size * length, wanted, width)
        patterns = self._pattern(rows.shape[1], (width,))
        standard = rows @ patterns / (1.0 if wanted.kind is Kind.CLASSES else math.sqrt(rows.shape[1]))
        standard = standard + 0.5 * NOISE * self._randn(size * length, width)
        given = self._scaled(main, standard.reshape(main.shape))
        return Drawn(given, given if wanted.is_input else code.reshape(size, length, *code.shape[1:]))

    def _regions(self, main: Tensor, wanted: Wanted) -> Drawn:
        """Images of a few regions, each with a colour of its own."""
        size, channels, height, width = main.shape
        field = F.interpolate(self._randn(size, 1, 4, 4), size=(height, width), mode="bicubic")
        field = (field - field.mean()) / field.std()
        if wanted.kind is Kind.NUMBERS:
            code, signal = field, field.expand(-1, channels, -1, -1)
        else:
            count = max(2, min(wanted.columns, 3)) if wanted.kind is Kind.CLASSES else 2
            edges = torch.tensor([0.0] if count == 2 else [-0.5, 0.5])
            classes = torch.bucketize(field[:, 0], edges)
            colours = 1.5 * self._pattern(count, (channels,)) + 1.5 * torch.linspace(-1, 1, count)[:, None]
            signal = colours[classes].movedim(-1, 1)
            code = _spread_out(classes, count, wanted.columns) if wanted.kind is Kind.CLASSES else classes
            code = code[:, None].float()
        given = self._scaled(main, signal + 0.5 * NOISE * self._randn(*main.shape))
        return Drawn(given, given if wanted.is_input else code)

    def _bags(self, main: Tensor, wanted: Wanted) -> Drawn | None:
        """Tokens, some of them more frequent for each code."""
        tokens = self._tokens
        if tokens is None or len(tokens) < 2:
            self._notes["why"] = "its tokens are all the same"
            return None
        groups = max(2, min(MOST_CLASSES, len(tokens), wanted.columns if wanted.kind is Kind.CLASSES else 4))
        group = torch.randint(groups, (len(main),), generator=self._generator)
        indices = torch.randint(len(tokens), tuple(main.shape), generator=self._generator)
        chosen = torch.rand(tuple(main.shape), generator=self._generator) < PREFERRED
        near = indices - indices % groups + group[:, None]
        indices = torch.where(chosen & (near < len(tokens)), near, indices)
        given = self._kept(main, tokens.to(main.device)[indices.to(main.device)])
        return Drawn(given, _of_groups(group, groups, wanted))

    def _chain(self, main: Tensor, wanted: Wanted) -> Drawn | None:
        """Tokens that follow each other by a rule, or at random with targets by a rule."""
        tokens = self._tokens
        if tokens is None or len(tokens) < 2:
            self._notes["why"] = "its tokens are all the same"
            return None
        size, length = main.shape
        count = len(tokens)
        rule = torch.randperm(count, generator=torch.Generator().manual_seed(SEED))
        steps = torch.randint(count, (size, length + 1), generator=self._generator)
        if not wanted.same_tokens:
            given = self._kept(main, tokens.to(main.device)[steps[:, :length].to(main.device)])
            groups = max(2, min(MOST_CLASSES, count, wanted.columns if wanted.kind is Kind.CLASSES else 4))
            return Drawn(given, _of_groups(rule[steps[:, :length]] % groups, groups, wanted))
        follows = torch.rand(size, length, generator=self._generator) < FOLLOWS
        for place in range(length):
            steps[:, place + 1] = torch.where(follows[:, place], rule[steps[:, place]], steps[:, place + 1])
        named = tokens.cpu()[steps]
        return Drawn(named[:, :length].to(main.device, main.dtype), named[:, 1:])

    def _kept(self, main: Tensor, drawn: Tensor) -> Tensor:
        fixed = self._fixed
        if fixed is None or len(fixed) != main.shape[1]:
            return drawn.to(main.dtype)
        return torch.where(fixed, main, drawn.to(main.dtype))


def _exchanged(value: Any, old: Tensor, new: Tensor) -> Any:
    if value is old:
        return new
    if isinstance(value, dict):
        return {key: _exchanged(item, old, new) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_exchanged(item, old, new) for item in value)
    return value


def _spread_out(classes: Tensor, count: int, of: int) -> Tensor:
    """Classes among all that there are."""
    return torch.linspace(0, of - 1, count).round().long()[classes]


def _of_groups(group: Tensor, groups: int, wanted: Wanted) -> Tensor:
    if wanted.kind is Kind.CLASSES:
        return _spread_out(group, groups, wanted.columns)
    if wanted.kind is Kind.BINARY:
        return torch.stack([group % 2, group // 2 % 2], -1)
    return torch.tensor(LEVELS)[group % 4][..., None]


def _of_ids(main: Tensor, wanted: Wanted) -> Tensor:
    groups = max(2, min(MOST_CLASSES, wanted.columns if wanted.kind is Kind.CLASSES else 4))
    return _of_groups(main.cpu().long() % groups, groups, wanted)


def _scales(main: Tensor) -> tuple[Tensor, Tensor, float, float]:
    """Mean and deviation of the inputs, by channel or column, and their range."""
    values = torch.nan_to_num(main.detach().float())
    feature = 1 if values.dim() in (2, 4) else values.dim() - 1
    others = [axis for axis in range(values.dim()) if axis != feature] or [0]
    if values.dim() == 1:
        others = [0]
    mean, spread = values.mean(others, keepdim=True), values.std(others, keepdim=True)
    typical = float(values.std()) or 1.0
    spread = torch.nan_to_num(spread)
    # A column that happened to be constant would be the only one that tells nothing.
    spread = torch.where(spread > 0, spread, torch.full_like(spread, 0.1 * typical))
    return mean, spread, float(values.min()), float(values.max())


def _patterns(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Of deviation 1. Images and signals: a wave of its own direction, and light and shade."""
    if len(shape) == 1:
        made = torch.randn(count, *shape, generator=generator)
    else:
        channels, (height, width) = (shape[0], shape[1:]) if len(shape) == 3 else (1, shape)
        made = F.interpolate(
            torch.randn(count, channels, 4, 4, generator=generator), size=(height, width), mode="bilinear"
        )
        down, along = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
        angles = torch.arange(count) * math.pi / count
        speeds = 2 * math.pi * (2 + 2 * (torch.arange(count) % 3))
        waves = torch.sin(
            speeds[:, None, None] * (down * torch.cos(angles)[:, None, None] + along * torch.sin(angles)[:, None, None])
        )
        signs = torch.where(torch.rand(count, channels, 1, 1, generator=generator) < 0.5, -1.0, 1.0)
        made = (made / made.std() + signs * waves[:, None]).reshape(count, *shape)
    size = made.reshape(count, -1).square().mean(1).sqrt().clamp_min(1e-6)
    return made / size.reshape(-1, *[1] * len(shape))


def _wanted(main: Tensor, compared: Compared) -> Wanted | None:
    """What targets like these want; None if it is not known how they belong to the inputs."""
    target, source = compared.target, compared.source
    found = compared.fit()
    if found is None or target.dim() == 0:
        return None
    size, kind = len(main), kind_of(main)
    is_classes = found.kind is Kind.CLASSES
    one_hot = is_classes and target.is_floating_point()
    whole = target.numel() // found.scores.shape[1] if one_hot else target.numel()
    count = found.scores.shape[1] if is_classes else 1
    by = ""
    if kind is Input.IMAGE and target.dim() >= 3 and target.shape[0] == size and min(target.shape[-2:]) > 1:
        by = "pixel"
    elif kind in (Input.TOKENS, Input.SEQUENCE) and main.shape[1] > 1 and _is_by_position(main, target, whole):
        by = "position"
    elif len(target) == size and (not is_classes or whole == size):
        by = "example"
    if not by or (by == "pixel" and one_hot):
        return None
    if not is_classes:
        parts = {"example": size, "position": size * main.shape[1] if main.dim() > 1 else size, "pixel": size}[by]
        count = max(1, target.numel() // parts) if by != "pixel" else 1
    values = target.detach().float()
    mean, spread = float(values.mean()), float(values.std()) if values.numel() > 1 else 1.0
    sane = SANE[0] <= spread <= SANE[1] and abs(mean) <= 3 * SANE[1]
    numbers = found.kind is Kind.NUMBERS
    is_input = numbers and target.numel() == main.numel() and _is_same(main, target)
    tokens = not main.is_floating_point() and is_classes and int(main.max()) < count and int(main.min()) >= 0
    return Wanted(
        found.kind,
        count,
        by,
        mean if numbers and sane else 0.0,
        spread if numbers and sane else 1.0,
        is_input,
        one_hot,
        tokens and by == "position" and count > 2 and source is not None,
    )


def _is_by_position(main: Tensor, target: Tensor, whole: int) -> bool:
    positions = len(main) * main.shape[1]
    return (target.dim() >= 2 and target.shape[:2] == main.shape[:2]) or (target.dim() <= 2 and whole == positions)


def _is_same(main: Tensor, target: Tensor) -> bool:
    return torch.allclose(main.detach().float().reshape(-1), target.detach().float().reshape(-1), atol=1e-5)


def _target_of(drawn: Drawn, wanted: Wanted, compared: Compared) -> Tensor | None:
    """The target that belongs to inputs of ours, in the shape and type of the script's."""
    target, code = compared.target, drawn.code.to(compared.target.device)
    if wanted.is_input:
        return code.reshape(target.shape).to(target.dtype) if code.numel() == target.numel() else None
    if wanted.by == "pixel":
        return _in_pixels(code, wanted, target)
    if wanted.kind is Kind.CLASSES:
        if wanted.one_hot:
            made = F.one_hot(code.reshape(-1), wanted.columns)
        else:
            made = code
    else:
        columns = torch.arange(wanted.columns, device=code.device) % code.shape[-1]
        made = code[..., columns]
        if wanted.kind is Kind.NUMBERS:
            made = wanted.mean + wanted.spread * made
    if made.numel() != target.numel():
        return None
    made = made.reshape(target.shape).to(target.dtype)
    if wanted.kind is Kind.CLASSES and not wanted.one_hot:
        made = torch.where(target == compared.ignored, target, made)
    return made


def _in_pixels(code: Tensor, wanted: Wanted, target: Tensor) -> Tensor:
    resized = F.interpolate(code.float(), size=tuple(target.shape[-2:]), mode="nearest")
    if wanted.kind is Kind.NUMBERS:
        resized = wanted.mean + wanted.spread * resized
    made = resized[:, 0] if target.dim() == 3 else resized.expand(-1, target.shape[1], -1, -1)
    return made.reshape(target.shape).to(target.dtype)
