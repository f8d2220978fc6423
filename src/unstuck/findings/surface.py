"""What is known about a loss on a line or a plane: plain arrays and numbers, no torch.

Everything that shows or judges a surface reads this and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unstuck.findings.landmarks import End, PointKind

if TYPE_CHECKING:
    from unstuck.events import Place
    from unstuck.findings import Finding

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Point = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Axis:
    """One input that is varied."""

    name: str
    points: Array
    """1-D, rising, at least two, evenly spaced."""

    @property
    def low(self) -> float:
        """The smallest value."""
        return float(self.points[0])

    @property
    def high(self) -> float:
        """The largest value."""
        return float(self.points[-1])

    @property
    def span(self) -> float:
        """From the smallest to the largest."""
        return self.high - self.low


@dataclass(frozen=True)
class Stationary:
    """A point where the gradient vanishes, refined beyond the grid."""

    at: Point
    """One coordinate per axis, in axis units."""
    value: float
    kind: PointKind
    curvature: Point
    """Eigenvalues of the Hessian, rising; one per axis. Infinite across a kink, where there is no Hessian."""


@dataclass(frozen=True)
class Culprit:
    """The operation that makes a region non-finite."""

    operation: str
    """`log`, `div`, `sqrt`, ..."""
    shown: str
    """The operation with the numbers it was given: `log(0)`, `0 / 0`, `the gradient of sqrt at 0`."""
    place: Place | None = None
    """The user's line, where it is known."""
    guard: str = ""
    """What to write instead; empty where no guard is known."""
    left: float | None = None
    """Share of the grid that is still non-finite when the guard is put in, where that was tried."""


@dataclass(frozen=True, eq=False)
class Region:
    """Cells of the grid that belong together."""

    low: Point
    """Lower corner of the box around it, in axis units."""
    high: Point
    """Upper corner."""
    share: float
    """Share of the grid's points inside it, from 0 to 1."""
    cells: Mask
    """Shape of `Surface.value`; true inside."""
    label: str = ""
    """`zero gradient`, `kink`, `desired`; for a non-finite region what is not finite: `loss` or `gradient`."""
    value: float | None = None
    """The loss there, where it is the same (to a millionth of its range) throughout."""
    culprit: Culprit | None = None
    """What makes it non-finite, for such a region."""


@dataclass(frozen=True, eq=False)
class FlowLine:
    """The way descent takes from one start."""

    optimizer: str
    """`flow` (gradient flow, that is SGD with ever smaller steps), `sgd` or `adam`."""
    points: Array
    """Shape (n, d): the start first, in axis units."""
    ended: End


@dataclass(frozen=True)
class FlowRow:
    """One line of the gradient-flow table."""

    component: str
    """`loss`, or the name of a component."""
    parameter: str
    """The name of the axis the gradient is for."""
    label: str
    """Which representative input: `zero`, `small`, `converged`, `degenerate`, `operating point`, ..."""
    at: Point
    loss: float
    gradient: float
    flag: str = ""
    """Empty when all is well; else `zero gradient`, `non-finite loss`, `non-finite gradient`."""


@dataclass(frozen=True)
class Disagreement:
    """A point at which autograd and finite differences do not agree."""

    at: Point
    autograd: Point
    finite_difference: Point


@dataclass(frozen=True)
class Destination:
    """A place in which descent comes to rest, with higher ground between it and every other."""

    at: Point
    """The lowest point that descent reached there."""
    value: float
    share: float
    """Of the starts."""
    gradient: float
    """The norm of the gradient at that point. Not 0 where only the edge of the plane stops descent."""
    is_mirror: bool = False
    """Is it the mirror image of a more frequent one, on a plane that is its own mirror image?"""


@dataclass(frozen=True)
class Arrivals:
    """Where descent from starts all over the plane ended, each as a share of the starts."""

    starts: int
    ended: Mapping[End, float]
    """Each with its share; they add up to 1."""
    destinations: tuple[Destination, ...] = ()
    """Where it came to rest, the most frequent first."""
    steps: int = 0
    """How many steps of descent were taken at most."""


@dataclass(frozen=True)
class Comparison:
    """A softmax that compares one right candidate with others: what a contrastive loss makes of similarities."""

    candidates: int
    scale: float
    """What the similarities are multiplied by before the softmax, the inverse of a temperature."""
    is_bounded: bool
    """Does the loss normalize its embeddings, so that no similarity can leave -1 to 1?"""

    @property
    def guess(self) -> float:
        """The loss where nothing tells the right candidate from the others."""
        return float(np.log(self.candidates))


@dataclass(frozen=True, eq=False)
class Surface:
    """A loss over one or two of its inputs, its gradient field, and what was found in them."""

    name: str
    axes: tuple[Axis, ...]
    """One or two."""
    value: Array
    """The loss: shape (len(x),) or (len(x), len(y)), indexed [x, y]. NaN where it could not be computed."""
    gradient: Array
    """Shape (d, *value.shape): d loss / d axis. Descent goes against it. NaN where there is none."""
    components: Mapping[str, Array] = field(default_factory=dict)
    """The value of each named part of the loss, in the shape of `value`."""
    stationary: tuple[Stationary, ...] = ()
    dead: tuple[Region, ...] = ()
    """Connected regions of zero gradient, also the harmless ones where the loss is at its lowest."""
    non_finite: tuple[Region, ...] = ()
    """Connected regions where the loss or its gradient is NaN or infinite. One without cells is a single point
    between those of the grid."""
    kinks: tuple[Region, ...] = ()
    """Where the gradient jumps: a point of a line, a curve in a plane."""
    desired: Region | None = None
    """Where the user wants descent to end."""
    flows: tuple[FlowLine, ...] = ()
    """Ways of descent to draw, from the marks and a few starts across the plane."""
    table: tuple[FlowRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What the rules say, the most important first."""
    rules_checked: int = 0
    """How many rules looked at it; none for one that was only drawn, such as a model's landscape."""
    marks: tuple[Point, ...] = ()
    """The user's own operating points."""
    mark_names: tuple[str, ...] = ()
    """What each of them is called, if they have names."""
    method: str = "vectorised"
    """How the grid was computed: a word of `Method`."""
    notes: tuple[str, ...] = ()
    """Sentences about what could not be done, or was done in another way than asked."""
    place: Place | None = None
    """Where the loss is defined, if that is known."""
    arrivals: Arrivals | None = None
    comparison: Comparison | None = None
    """Set where the loss is exactly such a softmax of its axes."""
    disagreements: tuple[Disagreement, ...] = ()
    """Sampled points where autograd and finite differences do not agree."""
    product: tuple[str, str] | None = None
    """The axes each factor depends on, when the loss is in essence a product: `("pos", "neg")`."""
    remedy: Surface | None = None
    """The same loss with its product taken apart in log space, to compare with."""
    eigenvalues: tuple[float, ...] = ()
    """A model's landscape only: the top eigenvalues of the Hessian at the model, the largest first."""

    @property
    def dimensions(self) -> int:
        """1 for a curve, 2 for a plane."""
        return len(self.axes)

    @property
    def extent(self) -> str:
        """`pos from -1 to 1 and neg from -1 to 1`: what was tried."""
        return " and ".join(f"{axis.name} from {axis.low:.4g} to {axis.high:.4g}" for axis in self.axes)

    @property
    def named_marks(self) -> list[tuple[str, Point]]:
        """The operating points, each with its name or an empty one."""
        names = self.mark_names or ("",) * len(self.marks)
        return list(zip(names, self.marks, strict=True))

    @property
    def finite(self) -> Mask:
        """Where the loss and its whole gradient are finite."""
        mask: Mask = np.isfinite(self.value) & np.isfinite(self.gradient).all(axis=0)
        return mask

    @property
    def steepness(self) -> Array:
        """The norm of the gradient at every point."""
        norm: Array = np.sqrt((self.gradient**2).sum(axis=0))
        return norm

    @property
    def gradient_where_highest(self) -> float | None:
        """The norm of the gradient where the loss is highest, as a share of the largest on the grid."""
        if not self.finite.any():
            return None
        largest = float(self.steepness[self.finite].max())
        there = np.unravel_index(int(np.where(self.finite, self.value, -np.inf).argmax()), self.value.shape)
        return float(self.steepness[there]) / largest if largest else None

    @property
    def gradient_farthest(self) -> tuple[float, float] | None:
        """The norm of the gradient farthest from the desired region, and the largest on the grid."""
        if self.desired is None or not self.finite.any():
            return None
        wanted = np.argwhere(self.desired.cells) / self._sizes
        cells = np.argwhere(self.finite)
        away = np.array([np.abs(wanted - cell).max(axis=1).min() for cell in cells / self._sizes])
        there = tuple(cells[int(away.argmax())])
        return float(self.steepness[there]), float(self.steepness[self.finite].max())

    @property
    def _sizes(self) -> Array:
        return np.array(self.value.shape, dtype=np.float64)

    @property
    def lowest(self) -> float:
        """The lowest finite value of the loss on the grid; NaN if there is none."""
        finite = self.value[np.isfinite(self.value)]
        return float(finite.min()) if finite.size else float("nan")

    @property
    def highest(self) -> float:
        """The highest finite value of the loss on the grid; NaN if there is none."""
        finite = self.value[np.isfinite(self.value)]
        return float(finite.max()) if finite.size else float("nan")
