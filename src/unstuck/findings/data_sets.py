"""What the data sets of a script hold, and how they differ: for rules that judge them, and for every kind of report."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unstuck.events import InputsCompared, Place, TensorShown


class Role(StrEnum):
    """What the script uses a data set for."""

    TRAINING = "training"
    EVALUATION = "evaluation"


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor of each example, over all examples that were read."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of one example; -1 where examples differ."""
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    spread: float | None = None
    broken: float = 0.0
    """The share of numbers that are not finite."""
    kinds: int | None = None
    """How many different ids there are."""
    lengths: tuple[int, int, int] | None = None
    """Of sequences, without the padding at an end: the shortest, the median and the longest."""
    padding: float = 0.0
    """The share of positions that are padding."""
    is_target: bool = False
    is_table: bool = False
    """Does each example have one row of numbers?"""
    constant: dict[int, float] = {}
    """Columns of a table that hold one value in every example, at most so many as are shown."""
    constants: int = 0
    """How many there are."""
    broken_columns: dict[int, float] = {}
    """Columns of a table with numbers that are not finite, and in which share of the examples."""


class Codes(msgspec.Struct, frozen=True, kw_only=True):
    """One value, far from all others, that comes again and again in a column."""

    column: int
    value: float
    count: int
    low: float
    high: float
    """Between which all others are."""
    example: int


class Outlier(msgspec.Struct, frozen=True, kw_only=True):
    """One value that is far from all others of its column."""

    column: int
    value: float
    low: float
    high: float
    """1 and 99 % of the column."""
    example: int


class Conflicts(msgspec.Struct, frozen=True, kw_only=True):
    """Examples with equal inputs and different targets."""

    examples: int
    """Those whose input comes with several targets."""
    natural: bool
    """Are there few possible inputs, so that equal ones are chance?"""
    first: tuple[tuple[int, int], ...] = ()
    """Pairs of examples."""


class Suspect(msgspec.Struct, frozen=True):
    """A label that all that is known of the other examples speaks against."""

    example: int
    label: int
    likely: int


class Suspects(msgspec.Struct, frozen=True, kw_only=True):
    """How far labels agree with what a simple model, fitted on the other examples, says of them."""

    looked_at: int
    right: float
    """The share of labels that it predicts."""
    guess: float
    """The share of the most frequent label."""
    sure: int
    """Examples of which it is most sure."""
    wrong: int
    """Labels among these that it contradicts."""
    rank: float
    """Where these lie among the sure ones, on average: 0.5 if anywhere, 0 if among the least sure."""
    first: tuple[Suspect, ...] = ()


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """How labels follow each other in the order in which the loader gives them."""

    changes: int
    """Neighbours with different labels."""
    expected: float
    """The same in random order."""


class DataSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One data set of the script."""

    name: str
    """The variable that holds it or its loader."""
    role: Role
    kind: str
    """Its class."""
    size: int | None = None
    """How many examples it holds, where that is known."""
    read: int = 0
    why: str = ""
    """Why not all of it was read, in a sentence."""
    place: Place | None = None
    """Where its loader was built."""
    varies: bool = False
    """Does the same example come out different each time, as with augmentation?"""
    parts: tuple[Part, ...] = ()
    classes: dict[int, int] | None = None
    """How often each label came."""
    equal: int = 0
    """Examples that equal an earlier one."""
    codes: tuple[Codes, ...] = ()
    outliers: tuple[Outlier, ...] = ()
    conflicts: Conflicts | None = None
    suspects: Suspects | None = None
    order: Order | None = None
    batch_size: int | None = None
    telling: tuple[int, ...] = ()
    """Columns from which the target follows exactly."""
    columns: int = 0
    """How many were looked at for that."""
    shown: tuple[TensorShown, ...] = ()
    """The first examples, for a person to look at."""
    draws: TensorShown | None = None
    """One example, read several times."""

    @property
    def target(self) -> Part | None:
        """What its examples should be answered with."""
        return next((part for part in self.parts if part.is_target), None)


class Twins(msgspec.Struct, frozen=True, kw_only=True):
    """Examples of one data set that another has too."""

    looked_at: int
    count: int
    chance: float = 0.0
    """How many there would be without a leak."""
    natural: bool = False
    """Are there so few possible examples that equal ones say nothing?"""
    first: tuple[tuple[int, int], ...] = ()
    """Pairs: the number of the example in evaluation, and that of the one in training."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A data set of the evaluation, next to that of the training."""

    name: str
    trained: str
    """The data set of the training."""
    is_same: bool = False
    """Is it the same object?"""
    shared: Twins | None = None
    """Examples that both take from one data set, by their numbers."""
    equal: Twins | None = None
    near: Twins | None = None
    overlapping: Twins | None = None
    """Windows of a series that share at least half of their numbers."""
    unseen: dict[int, int] = {}
    """Labels that only the evaluation has."""
    absent: dict[int, float] = {}
    """Labels that the evaluation has not, and how many it would have by their share in training."""
    inputs: InputsCompared | None = None
    """Columns of numbers."""
    standard: tuple[float, float] = (0.0, 0.0)
    """The share of columns with mean 0 and deviation 1, in training and in evaluation."""
    independent: float = 0.0
    """How many directions the inputs of the training vary in: a series has few, whatever its length."""
    line: tuple[float, ...] | None = None
    """Means in evaluation as a straight line of those in training: factor, offset in deviations, the share of their
    variance that it explains, and by how much columns differ in what their deviation was multiplied by."""


class DataFound(msgspec.Struct, frozen=True, kw_only=True):
    """What was found: the note `data` of a trial."""

    sets: tuple[DataSet, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    why: str = ""
    """Why nothing was."""
    cut: tuple[str, ...] = ()
    """What was not looked at, a sentence each."""

    def without_pictures(self) -> DataFound:
        """The same without examples to look at, which are large."""
        sets = tuple(msgspec.structs.replace(one, shown=(), draws=None) for one in self.sets)
        return msgspec.structs.replace(self, sets=sets)

    @property
    def training(self) -> DataSet | None:
        """What the script trains on."""
        return next((one for one in self.sets if one.role is Role.TRAINING), None)

    def named(self, name: str) -> DataSet | None:
        """The data set of this name."""
        return next((one for one in self.sets if one.name == name), None)
