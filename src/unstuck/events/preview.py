"""The data of a run on the table: what the model received, its first filters, what it predicts. Plain data."""

from __future__ import annotations

from pathlib import Path

import msgspec

from unstuck.events import Event
from unstuck.regular import read_regular

FILE = "exhibit.json"
LARGEST_TABLE = 64 * 2**20


class Drawn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One example as it can be shown: pixels of a picture, or numbers."""

    height: int = 0
    width: int = 0
    channels: int = 0
    """1 or 3; 0: it is no picture."""
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
    """Examples that are the same as an earlier one, bit by bit."""
    form: str = ""
    """How it is drawn: `pictures`, `series`, `table` or `ids`."""
    scaling: str = ""
    """How values became grey levels."""
    drawn: tuple[Drawn, ...] = ()


class TargetShown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the first call of a loss was given to compare with."""

    loss: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    counts: dict[str, int] = {}
    """How often each class came, over the calls that were counted."""
    batches: int = 0
    """How many calls were counted."""


class Filters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Weights of a first layer as pictures, at one step. A byte is 128 at 0, 255 at `scale` and 1 at minus that."""

    step: int
    scale: float
    pictures: tuple[Drawn, ...] = ()


class FirstLayer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The layer that looks at the pictures, before training and at the last look."""

    name: str
    kind: str
    count: int
    start: Filters
    end: Filters
    moved: float | None = None
    """The norm of the change as a share of the norm at the start."""


class Snapshot(msgspec.Struct, frozen=True):
    """What the model predicts for the probe batch after so many steps, a number for each example."""

    step: int
    values: tuple[float | None, ...]
    confidence: tuple[float | None, ...] = ()


class Dynamics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Predictions on a fixed batch over the run."""

    kind: str
    """`class`: the class with the highest score; `value`: the output; `right`: the share of positions
    predicted right; `spread`: the deviation within the output."""
    classes: int = 0
    targets: tuple[float | None, ...] = ()
    """In the unit of the values, where examples have one each."""
    snapshots: tuple[Snapshot, ...] = ()
    training_mode: bool = True
    batch: str = "the first batch"
    asked: bool = True
    """The model was called for this, with the same dropout each time; else the program called it."""


class Table(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything on the table."""

    model: str = ""
    tensors: tuple[TensorShown, ...] = ()
    target: TargetShown | None = None
    class_names: tuple[str, ...] = ()
    first_layer: FirstLayer | None = None
    dynamics: Dynamics | None = None
    notes: tuple[str, ...] = ()


class BatchShown(Event, tag="batch-shown", frozen=True):
    """The first training batch of a model as it was received, to be looked at."""

    model: str = ""
    tensors: tuple[TensorShown, ...] = ()
    class_names: tuple[str, ...] = ()


class FiltersShown(Event, tag="filters-shown", frozen=True):
    """The filters of the layer that looks at the pictures, told a few times in a run."""

    model: str = ""
    layer: str = ""
    kind: str = ""
    count: int = 0
    filters: Filters | None = None
    moved: float | None = None
    """How far those shown are from where they began, as a share of their norm there."""


class Predicted(Event, tag="predicted", frozen=True):
    """What a model made of a batch that the program gave it before."""

    model: str = ""
    batch: int = 0
    """Which of the batches that came again."""
    kind: str = ""
    """As `Dynamics` has it."""
    classes: int = 0
    values: tuple[float | None, ...] = ()
    confidence: tuple[float | None, ...] = ()
    targets: tuple[float | None, ...] = ()
    training_mode: bool = True
    learning: bool = True
    """With gradients, in training mode: else the program evaluates."""


def read_table(folder: Path) -> Table | None:
    """What a trial kept in its folder, or the first trial of an investigation that kept something."""
    for path in (folder / FILE, *sorted(folder.glob(f"*/{FILE}"))):
        try:
            return msgspec.json.decode(read_regular(path, LARGEST_TABLE), type=Table)
        except (OSError, msgspec.DecodeError, RecursionError):
            continue
    return None
