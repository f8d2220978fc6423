"""What a run records of its data for a person to look at: the first batch, the first filters, some predictions."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unstuck.events.base import Event


class Form(StrEnum):
    """How the examples of a tensor are drawn."""

    NONE = ""
    PICTURES = "pictures"
    SERIES = "series"
    TABLE = "table"
    IDS = "ids"


class PredictionKind(StrEnum):
    """What the number that stands for each prediction is."""

    CLASS = "class"
    """The class with the highest score."""
    VALUE = "value"
    """The output itself."""
    RIGHT = "right"
    """The share of positions predicted right."""
    SPREAD = "spread"
    """The standard deviation within the output."""


class Drawn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One example: pixels of a picture, or numbers."""

    height: int = 0
    width: int = 0
    channels: int = 0
    """1 or 3; 0 if it is not a picture."""
    pixels: bytes = b""
    numbers: tuple[float | None, ...] = ()
    """None: not finite."""
    text: str = ""
    """Token ids as the program's own tokenizer decodes them."""
    target: str = ""


class TensorShown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor that the model was called with."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    spread: float | None = None
    quantiles: tuple[float, ...] = ()
    """1, 25, 50, 75 and 99 %."""
    broken: float = 0.0
    """The share that is not finite."""
    examples: int = 0
    constant: int = 0
    """Examples whose elements are all the same."""
    duplicates: int = 0
    """Examples that equal an earlier one, bit by bit."""
    form: Form = Form.NONE
    scaling: str = ""
    """How values became grey levels."""
    drawn: tuple[Drawn, ...] = ()


class Filters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Weights of a first layer as pictures, at one step. A byte is 128 at 0, 255 at `scale` and 1 at minus that."""

    step: int
    scale: float
    pictures: tuple[Drawn, ...] = ()


class BatchShown(Event, tag="batch-shown", frozen=True):
    """The first training batch of a model, as it received it."""

    model: str = ""
    tensors: tuple[TensorShown, ...] = ()
    class_names: tuple[str, ...] = ()


class FiltersShown(Event, tag="filters-shown", frozen=True):
    """The filters of the layer that receives the pictures, recorded a few times in a run."""

    model: str = ""
    layer: str = ""
    kind: str = ""
    count: int = 0
    filters: Filters | None = None
    moved: float | None = None
    """How far they are from where they began, as a share of their norm there."""


class Predicted(Event, tag="predicted", frozen=True):
    """What a model predicts for a batch that it receives again and again."""

    model: str = ""
    batch: int = 0
    """Which of the batches that came again."""
    kind: PredictionKind = PredictionKind.VALUE
    values: tuple[float | None, ...] = ()
    targets: tuple[float | None, ...] = ()
    """In the unit of the values, where each example has one."""
    training_mode: bool = True
    learning: bool = True
    """With gradients, in training mode: else the program evaluates."""
    asked: bool = False
    """In a trial: we gave the model its first batch, with the same dropout each time; else the program called it."""
    trouble: str = ""
    """Why a model cannot be asked any more."""
