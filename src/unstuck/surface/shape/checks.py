"""What to report about a surface besides its shape: wrong gradients, axes without effect, calls that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unstuck.findings.landmarks import Method
from unstuck.findings.surface import Array, Axis, Disagreement, Mask
from unstuck.surface.field import Field
from unstuck.surface.shape.stationary import scale_of

SAMPLES = 48


def disagreements(exact: Field, axes: Sequence[Axis], gradient: Array) -> tuple[Disagreement, ...]:
    """Points where the gradient of autograd is not the slope of the loss. Kinks are passed over."""
    scale = scale_of(axes, gradient)
    points = sample_of(axes)
    double = exact.dtype.itemsize == 8
    width = scale.spans * (1e-6 if double else 2e-3)
    middle, claimed = exact(points)
    shifts = [sign * np.eye(len(axes))[i] * width for i in range(len(axes)) for sign in (1, -1)]
    sides = exact(np.concatenate([points + shift for shift in shifts]))[0].reshape(len(axes), 2, len(points))
    forward, backward = (sides[:, 0] - middle) / width[:, None], (middle - sides[:, 1]) / width[:, None]
    slope = (forward + backward) / 2
    room = 1e-4 * typical_slope(middle, scale.spans)[:, None] + (1e-3 if double else 0.1) * np.abs(slope)
    with np.errstate(invalid="ignore"):
        smooth = (np.abs(forward - backward) <= 2 * room).all(axis=0)
        wrong: Mask = np.asarray(smooth & (np.abs(slope - claimed) > room).any(axis=0))
    return tuple(
        Disagreement(tuple(map(float, at)), tuple(map(float, one)), tuple(map(float, other)))
        for at, one, other in zip(points[wrong], claimed.T[wrong], slope.T[wrong], strict=True)
    )


def typical_slope(value: Array, spans: Array) -> Array:
    """How steep a straight line through the plane's values would be along each axis."""
    finite = value[np.isfinite(value)]
    return np.asarray((np.ptp(finite) if finite.size else 0.0) / spans)


def sample_of(axes: Sequence[Axis]) -> Array:
    """Points that no symmetric plane has on its axes of symmetry, the same ones every time."""
    generator = np.random.default_rng(0)
    low, span = np.array([axis.low for axis in axes]), np.array([axis.span for axis in axes])
    points: Array = low + span * generator.uniform(0.02, 0.98, (SAMPLES, len(axes)))
    return points


def samples_for_method(axes: Sequence[Axis]) -> Array:
    """A few of them, to try out how the loss wants to be called."""
    return sample_of(axes)[:6]


def notes_on(field: Field, axes: Sequence[Axis], value: Array, gradient: Array) -> Iterator[str]:
    """A sentence for everything that is not as the user may expect."""
    yield from field.remarks
    if field.method == Method.POINT_BY_POINT:
        yield f"{field.loss.name} works neither on a batch nor under vmap, so it was called once for every point."
    if not field.differentiable:
        yield f"{field.loss.name} has no gradient: nothing in it connects its result with its inputs."
    for index, axis in enumerate(axes):
        if _ignores(value, gradient, index):
            yield f"{field.loss.name} does not depend on {axis.name} here."
    total = max(1, value.size)
    for sentence, count in sorted(field.errors.items(), key=lambda item: -item[1])[:3]:
        yield f"{field.loss.name} raises at {count / total:.0%} of the points: {sentence}"
    if not np.isfinite(value).any():
        yield f"{field.loss.name} is finite nowhere on this plane."


def _ignores(value: Array, gradient: Array, axis: int) -> bool:
    finite = np.isfinite(value)
    if not finite.any() or np.nan_to_num(gradient[axis]).any():
        return False
    steps = np.abs(np.diff(value, axis=axis))
    still: bool = bool(np.nanmax(steps, initial=0.0) <= 1e-6 * max(np.ptp(value[finite]), 1e-30))
    return still or bool(np.ptp(value[finite]) == 0)
