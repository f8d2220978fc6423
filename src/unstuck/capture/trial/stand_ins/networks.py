"""Small networks that learn most things to some extent, one for each kind of input and output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 64
MOST_IDS = 10_007
LONGEST = 1024
"""Positions that have a vector of their own; those beyond share the last."""
LARGEST_SIDE = 64
"""Of an image, in pixels; larger ones are averaged down."""
MOST_OUTPUTS = 2**17
"""Numbers for one example that a linear layer still gives."""


class Input(StrEnum):
    """What an input is, by its type and shape."""

    TOKENS = "tokens"
    IDS = "ids"
    TABLE = "table"
    SEQUENCE = "sequence"
    IMAGE = "image"
    OTHER = "other"


class Shape(StrEnum):
    """What there is an output for."""

    EXAMPLE = "example"
    POSITION = "position"
    PIXEL = "pixel"


def kind_of(tensor: Tensor) -> Input:
    """Of a batch of inputs."""
    if not tensor.is_floating_point():
        return Input.TOKENS if tensor.dim() == 2 else Input.IDS if tensor.dim() == 1 else Input.OTHER
    kinds = {1: Input.TABLE, 2: Input.TABLE, 3: Input.SEQUENCE, 4: Input.IMAGE}
    return kinds.get(tensor.dim(), Input.OTHER)


ORDER = (Input.IMAGE, Input.TOKENS, Input.SEQUENCE, Input.TABLE, Input.IDS, Input.OTHER)


def main_of(tensors: Sequence[Tensor]) -> int:
    """Which of several inputs is the main one."""
    return min(range(len(tensors)), key=lambda index: ORDER.index(kind_of(tensors[index])))


def shape_of(main: Tensor, output: torch.Size) -> Shape | None:
    """What an output of this shape is about, for the main input; None if that is not clear."""
    kind, size = kind_of(main), len(main)
    if not output:
        return None
    if kind is Input.IMAGE and len(output) == 4 and output[0] == size and min(output[2:]) > 1:
        return Shape.PIXEL
    if kind in (Input.TOKENS, Input.SEQUENCE) and time_axis(main, output) is not None:
        return Shape.POSITION
    return Shape.EXAMPLE if output[0] == size else None


def time_axis(main: Tensor, output: torch.Size) -> int | None:
    """The axis of the input along which there is an output for each position: flat, or with the numbers for a position
    last or second."""
    size = len(main)
    for axis in [1] if main.dim() == 2 else sorted((1, 2), key=lambda axis: -main.shape[axis]):
        length = main.shape[axis]
        flat = len(output) in (1, 2) and output[0] == size * length
        if length > 1 and (flat or (len(output) == 3 and output[0] == size and length in output[1:])):
            return axis
    return None


class Network(nn.Module):
    """Encodes every input, and makes an output of the wanted shape of that. What it gives for a position depends on no
    later one."""

    def __init__(self, inputs: Sequence[Tensor], output: torch.Size) -> None:
        super().__init__()
        self._main = main_of(inputs)
        main = inputs[self._main]
        shape = shape_of(main, output)
        if shape is None:
            raise ValueError(f"an output of shape {list(output)} for {len(main)} examples is not one for each")
        if kind_of(main) is Input.OTHER:
            raise ValueError(f"an input of shape {list(main.shape)} and type {main.dtype} is of no known kind")
        self._shape = shape
        self._axis = time_axis(main, output) or 1
        self._per_example = len(main) and output.numel() // len(main)
        others = [t for i, t in enumerate(inputs) if i != self._main and len(t) == len(main)]
        self._used = [i for i, t in enumerate(inputs) if i != self._main and len(t) == len(main)]
        self.others = nn.ModuleList([_encoder(tensor) for tensor in others])
        extra = WIDTH * len(others)
        if shape is Shape.EXAMPLE:
            if self._per_example > MOST_OUTPUTS:
                raise ValueError(f"{self._per_example} numbers for each example are too many")
            self.encoder: nn.Module = _encoder(main)
            self.head: nn.Module = nn.Sequential(
                nn.Linear(WIDTH + extra, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, self._per_example)
            )
            wide = main.dim() <= 2 and main.is_floating_point()
            self.straight = nn.Linear(_columns(main), self._per_example) if wide else None
            self.standardise = _Standardised(_table(main), 1) if wide else nn.Identity()
        elif shape is Shape.POSITION:
            self.encoder = _Causal(main, self._axis)
            positions = len(main) * main.shape[self._axis]
            self._channels = output.numel() // positions
            self._channels_first = len(output) == 3 and output[1:] == (self._channels, main.shape[self._axis])
            self.head = nn.Linear(WIDTH + extra, self._channels)
        else:
            self.encoder = _Pixels(main)
            self.head = nn.Conv2d(WIDTH // 2 + main.shape[1] + extra, output[1], 1)

    def forward(self, inputs: Sequence[Tensor], output: torch.Size) -> Tensor:
        main = inputs[self._main]
        rest = [encode(inputs[i]) for encode, i in zip(self.others, self._used, strict=True)]
        if self._shape is Shape.EXAMPLE:
            made: Tensor = self.head(torch.cat([self.encoder(main), *rest], 1))
            if self.straight is not None:
                made = made + self.straight(self.standardise(_table(main)))
            return made.reshape(output)
        if self._shape is Shape.POSITION:
            steps: Tensor = self.encoder(main)
            wide = [each[:, None].expand(-1, steps.shape[1], -1) for each in rest]
            made = self.head(torch.cat([steps, *wide], 2))
            return (made.transpose(1, 2) if self._channels_first else made).reshape(output)
        grid: Tensor = self.encoder(main, output[2:])
        wide = [each[:, :, None, None].expand(-1, -1, *output[2:]) for each in rest]
        made = self.head(torch.cat([grid, *wide], 1))
        return made.reshape(output)


def _encoder(tensor: Tensor) -> nn.Module:
    """From inputs like this one to `WIDTH` numbers for each example."""
    match kind_of(tensor):
        case Input.TOKENS:
            return _Pooled(tensor)
        case Input.IDS:
            return _Ids(tensor)
        case Input.IMAGE:
            return _Image(tensor)
        case Input.SEQUENCE:
            return _Signal(tensor)
    return _Table(tensor)


class _Standardised(nn.Module):
    """Brings inputs to mean 0 and deviation 1, by what the first batch shows."""

    def __init__(self, tensor: Tensor, feature: int) -> None:
        super().__init__()
        values = tensor.detach().float()
        others = [axis for axis in range(values.dim()) if axis != feature]
        mean = values.mean(others, keepdim=True)
        spread = values.std(others, keepdim=True) if values.numel() > values.shape[feature] else torch.zeros_like(mean)
        # A column that is 0 in almost all rows would become huge where it is not.
        floor = 0.1 * spread.mean() + 1e-6
        self.register_buffer("mean", torch.nan_to_num(mean))
        self.register_buffer("spread", torch.nan_to_num(spread).clamp_min(float(torch.nan_to_num(floor))))
        self.mean: Tensor
        self.spread: Tensor

    def forward(self, tensor: Tensor) -> Tensor:
        return torch.nan_to_num((tensor.float() - self.mean) / self.spread).clamp(-10, 10)


def _columns(tensor: Tensor) -> int:
    return tensor[0].numel() if tensor.dim() > 1 else 1


def _table(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1)


class _Table(nn.Module):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.standardise = _Standardised(_table(tensor), 1)
        wide = 2 * WIDTH
        self.layers = nn.Sequential(
            nn.Linear(_columns(tensor), wide), nn.GELU(), nn.Linear(wide, wide), nn.GELU(), nn.Linear(wide, WIDTH)
        )

    def forward(self, tensor: Tensor) -> Tensor:
        made: Tensor = self.layers(self.standardise(_table(tensor)))
        return made


class _Ids(nn.Module):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Embedding(_ids(tensor), WIDTH)

    def forward(self, tensor: Tensor) -> Tensor:
        made: Tensor = self.vectors(tensor.long() % self.vectors.num_embeddings)
        return made


def _ids(tensor: Tensor) -> int:
    """Rows of an embedding for ids like these; larger ones share a row."""
    return min(MOST_IDS, 4 * max(64, int(tensor.max()) + 1))


class _Tokens(nn.Module):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.vectors = _Ids(tensor)
        self.places = nn.Embedding(LONGEST, WIDTH)
        nn.init.normal_(self.places.weight, std=0.1)

    def forward(self, tensor: Tensor) -> Tensor:
        places = torch.arange(tensor.shape[1], device=tensor.device).clamp_max(LONGEST - 1)
        made: Tensor = self.vectors(tensor) + self.places(places)
        return made


def _attention() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)


class _Pooled(nn.Module):
    """Tokens, all of them for one answer."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tokens = _Tokens(tensor)
        self.near = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.far = _attention()
        self.layer = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, tensor: Tensor) -> Tensor:
        steps = self.tokens(tensor)
        steps = steps + F.gelu(self.near(steps.transpose(1, 2))).transpose(1, 2)
        steps = self.far(steps)
        made: Tensor = F.gelu(self.layer(torch.cat([steps.mean(1), steps.amax(1)], 1)))
        return made


class _Causal(nn.Module):
    """`WIDTH` numbers for each position, from it and those before it."""

    def __init__(self, tensor: Tensor, axis: int) -> None:
        super().__init__()
        self._axis = axis
        is_tokens = kind_of(tensor) is Input.TOKENS
        self.tokens = _Tokens(tensor) if is_tokens else None
        if not is_tokens:
            steps = self._steps(tensor)
            self.standardise = _Standardised(steps, 2)
            self.inner = nn.Linear(steps.shape[2], WIDTH)
        self.near = nn.ModuleList([nn.Conv1d(WIDTH, WIDTH, 3, dilation=2**power) for power in range(3)])
        self.far = _attention()

    def _steps(self, tensor: Tensor) -> Tensor:
        return tensor if self._axis == 1 else tensor.transpose(1, 2)

    def forward(self, tensor: Tensor) -> Tensor:
        steps: Tensor = (
            self.tokens(tensor) if self.tokens is not None else self.inner(self.standardise(self._steps(tensor)))
        )
        for power, layer in enumerate(self.near):
            before = F.pad(steps.transpose(1, 2), (2 * 2**power, 0))
            steps = steps + F.gelu(layer(before)).transpose(1, 2)
        if steps.shape[1] > LONGEST:
            return steps
        mask = torch.ones(steps.shape[1], steps.shape[1], dtype=torch.bool, device=steps.device).triu(1)
        made: Tensor = self.far(steps, src_mask=mask)
        return made


class _Signal(nn.Module):
    """A sequence of vectors, or a signal of several channels, all of it for one answer."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self._turn = tensor.shape[1] > tensor.shape[2]
        steps = self._channels(tensor)
        self.standardise = _Standardised(steps, 1)
        self.layers = nn.Sequential(
            nn.Conv1d(steps.shape[1], WIDTH, 5, padding=2), nn.GELU(), nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.GELU()
        )
        self.head = nn.Linear(8 * WIDTH, WIDTH)

    def _channels(self, tensor: Tensor) -> Tensor:
        return tensor.transpose(1, 2) if self._turn else tensor

    def forward(self, tensor: Tensor) -> Tensor:
        made = F.adaptive_avg_pool1d(self.layers(self.standardise(self._channels(tensor))), 8)
        return F.gelu(self.head(made.flatten(1)))


class _Image(nn.Module):
    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.standardise = _Standardised(tensor, 1)
        self.layers = nn.Sequential(
            nn.Conv2d(tensor.shape[1], 32, 3, padding=1),
            nn.GroupNorm(4, 32),
            nn.GELU(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(32, WIDTH, 3, padding=1),
            nn.GroupNorm(4, WIDTH),
            nn.GELU(),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.GELU(),
        )
        self.head = nn.Linear(16 * WIDTH, WIDTH)

    def forward(self, tensor: Tensor) -> Tensor:
        made = self.layers(_smaller(self.standardise(tensor)))
        return F.gelu(self.head(F.adaptive_avg_pool2d(made, 4).flatten(1)))


def _smaller(tensor: Tensor) -> Tensor:
    height, width = tensor.shape[2:]
    times = math.ceil(max(height, width) / LARGEST_SIDE)
    return F.avg_pool2d(tensor, times, ceil_mode=True) if times > 1 else tensor


class _Pixels(nn.Module):
    """An image, with numbers for each pixel of the output."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.standardise = _Standardised(tensor, 1)
        half = WIDTH // 2
        self.layers = nn.Sequential(
            nn.Conv2d(tensor.shape[1], half, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(half, half, 3, padding=2, dilation=2),
            nn.GELU(),
            nn.Conv2d(half, half, 3, padding=4, dilation=4),
            nn.GELU(),
        )

    def forward(self, tensor: Tensor, size: torch.Size) -> Tensor:
        whole = self.standardise(tensor)
        made = F.interpolate(self.layers(_smaller(whole)), size=tuple(size), mode="bilinear")
        return torch.cat([made, F.interpolate(whole, size=tuple(size), mode="bilinear")], 1)
