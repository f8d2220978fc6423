"""Axes: as the user gives them, or as the loss's signature suggests them."""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unstuck.findings.surface import Axis
from unstuck.surface.loss import SurfaceError, instance_of, name_of, signature_of

FEWEST_POINTS = 3
MOST_AXES = 2
AxisSpec = Axis | str | Sequence[Any] | None
"""`("margin", -3, 3)`, `("margin", -3, 3, 200)`, `(-3, 3)`, `"margin"`, `"margin=-3:3"` or an `Axis`."""

_TARGET = re.compile(r"(y_?)?(true|target|label|gt)s?$|.*_(target|label)s?$")
_USUAL = (
    (re.compile(r"p|q|prob.*|.*_prob|.*probabilit.*|confidence|iou|dice"), (0.0, 1.0)),
    (re.compile(r"t|temp|temperature|tau|sigma|std|scale|.*_temp"), (0.01, 1.0)),
    (re.compile(r"pos(itive)?|neg(ative)?|cos.*|sim.*|dot.*|.*_(sim|cos|dot)|sim_.*"), (-1.0, 1.0)),
    (re.compile(r"d|dist.*|d_.*|.*_dist(ance)?|.*_norm|norm|var.*|length"), (0.0, 2.0)),
)
_ANYTHING = (-3.0, 3.0)


def axes_of(
    loss: Any, x: AxisSpec, y: AxisSpec, fixed: Mapping[str, Any], points: int | Sequence[int]
) -> tuple[Axis, ...]:
    """The axes that were given, or those that the signature suggests."""
    counts = [points] * MOST_AXES if isinstance(points, int) else list(points)
    if x is None and y is not None:
        x, y = y, None
    if x is None:
        found = _suggested(loss, fixed)
        return tuple(_axis(name, *span, count) for (name, span), count in zip(found, counts, strict=False))
    free = [name for name, _ in _candidates(loss, fixed)]
    axes = [_parsed(spec, i, free, loss, counts[i]) for i, spec in enumerate((x, y)) if spec is not None]
    if len({axis.name for axis in axes}) < len(axes):
        raise SurfaceError(f"both axes are called {axes[0].name!r}; a plane has two different inputs.")
    return tuple(axes)


def _parsed(spec: AxisSpec, position: int, free: Sequence[str], loss: Any, count: int) -> Axis:
    if isinstance(spec, Axis):
        return spec
    words = _words(spec) if isinstance(spec, str) else list(spec or ())
    if words and isinstance(words[0], str):
        name, *numbers = words
    else:
        name, numbers = (free[position] if position < len(free) else "xy"[position]), words
    if not numbers:
        numbers = list(_usual_range(name, loss))
    if len(numbers) not in (2, 3) or not all(isinstance(number, (int, float)) for number in numbers):
        raise SurfaceError(f"an axis is (name, low, high), such as ('margin', -3, 3), not {spec!r}.")
    return _axis(name, float(numbers[0]), float(numbers[1]), int(numbers[2]) if len(numbers) == 3 else count)


def _words(spec: str) -> list[Any]:
    """`margin=-3:3:200` as a name and numbers; each part but the range may be left out."""
    name, equals, text = spec.rpartition("=")
    if not equals and ":" not in spec:
        return [spec.strip()]
    try:
        numbers: list[Any] = [float(word) for word in text.split(":")]
    except ValueError:
        raise SurfaceError(f"{spec!r} is not an axis; write name=low:high, such as margin=-3:3.") from None
    return [name.strip(), *numbers] if equals else numbers


def _axis(name: str, low: float, high: float, count: int) -> Axis:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise SurfaceError(f"the range of {name} must be finite, not {low:g} to {high:g}.")
    if low >= high:
        raise SurfaceError(f"the range of {name} is empty: {low:g} is not below {high:g}.")
    if count < FEWEST_POINTS:
        raise SurfaceError(f"{name} needs at least {FEWEST_POINTS} points, not {count}.")
    return Axis(name, np.linspace(low, high, count))


def _suggested(loss: Any, fixed: Mapping[str, Any]) -> list[tuple[str, tuple[float, float]]]:
    """The first one or two inputs that must be given and are not targets."""
    candidates = _candidates(loss, fixed)
    if not candidates:
        raise SurfaceError(f"no input of {name_of(loss)} can be an axis on its own; name one, such as x=('x', -3, 3).")
    missing = [name for name in _required(loss, fixed) if _TARGET.fullmatch(name)]
    if missing:
        raise SurfaceError(f"{name_of(loss)} also needs {missing[0]!r}; fix it at a value.")
    return [(name, _usual_range(name, loss)) for name, _ in candidates[:MOST_AXES]]


def _candidates(loss: Any, fixed: Mapping[str, Any]) -> list[tuple[str, inspect.Parameter]]:
    parameters = _parameters(loss)
    required = _required(loss, fixed)
    wanted = [name for name in required if not _TARGET.fullmatch(name)]
    if not required:
        wanted = [n for n, p in parameters.items() if n not in fixed and isinstance(p.default, float)]
    return [(name, parameters[name]) for name in wanted]


def two_inputs(loss: Any, fixed: Mapping[str, Any]) -> tuple[str, str] | None:
    """The names of the inputs of a loss that takes two, neither of them a target."""
    names = _required(loss, fixed)
    targets = [name for name in names if _TARGET.fullmatch(name)]
    return (names[0], names[1]) if len(names) == MOST_AXES and not targets else None


def _required(loss: Any, fixed: Mapping[str, Any]) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    items = _parameters(loss).items()
    return [n for n, p in items if p.default is p.empty and p.kind not in kinds and n not in fixed]


def _parameters(loss: Any) -> dict[str, inspect.Parameter]:
    signature = signature_of(instance_of(loss, name_of(loss)))
    return dict(signature.parameters) if signature else {}


def _usual_range(name: str, loss: Any) -> tuple[float, float]:
    """From `Annotated[Tensor, low, high]`, from a default, or from what a name like this usually holds."""
    parameter = _parameters(loss).get(name)
    noted = _annotated(loss, name)
    if noted:
        return noted
    if parameter is not None and isinstance(parameter.default, float):
        reach = max(1.0, abs(parameter.default))
        return parameter.default - reach, parameter.default + reach
    return next((span for pattern, span in _USUAL if pattern.fullmatch(name.lower())), _ANYTHING)


def _annotated(loss: Any, name: str) -> tuple[float, float] | None:
    target = getattr(loss, "forward", loss)
    try:
        hint = typing.get_type_hints(target, include_extras=True).get(name)
    except (TypeError, NameError, AttributeError):
        return None
    extras: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    numbers = extras[0] if len(extras) == 1 and isinstance(extras[0], (tuple, list)) else extras
    if len(numbers) == MOST_AXES and all(isinstance(number, (int, float)) for number in numbers):
        return float(numbers[0]), float(numbers[1])
    return None
