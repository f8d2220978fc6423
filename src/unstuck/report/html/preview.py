"""The data of a run: what the model received, its first filters, and what it predicts for one fixed batch."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

from unstuck.events import Drawn, Filters, Form, PredictionKind, TensorShown
from unstuck.findings.preview import Dynamics, FirstLayer, Preview, Snapshot, Targets
from unstuck.report.html import png
from unstuck.report.html.markup import Html, tag
from unstuck.report.preview import class_word, input_sentences, prediction_sentences, target_sentence

MOST_BARS = 30
MOST_ROWS = 8
MOST_CHIPS = 20
BROKEN = (128, 128, 128)
RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Dark is low."""
CLASSES = ("4477aa", "ee6677", "228833", "ccbb44", "66ccee", "aa3377", "882255", "999933", "ddaa77", "44aa99")


def preview_parts(preview: Preview) -> list[Html]:
    """The data of one model."""
    sentences = input_sentences(preview)
    parts = [tag("ul", [tag("li", sentence) for sentence in sentences])] if sentences else []
    for tensor in preview.tensors:
        parts += _tensor(tensor, preview)
    if preview.targets is not None:
        parts += _target(preview.targets, preview)
    if preview.first_layer is not None:
        parts += _filters(preview.first_layer)
    if preview.dynamics is not None and preview.dynamics.snapshots:
        parts += _dynamics(preview.dynamics, preview)
    return [*parts, tag("p", f"Predictions: {preview.trouble}.", class_="quiet")] if preview.trouble else parts


def _tensor(tensor: TensorShown, preview: Preview) -> list[Html]:
    shape = " × ".join(str(length) for length in tensor.shape)
    facts = [("type", tensor.dtype), ("shape", shape)]
    if tensor.low is not None and tensor.high is not None:
        facts.append(("range", f"{tensor.low:.4g} to {tensor.high:.4g}"))
    if tensor.mean is not None and tensor.spread is not None and tensor.form is not Form.IDS:
        facts.append(("mean ± deviation", f"{tensor.mean:.3g} ± {tensor.spread:.3g}"))
    if len(tensor.quantiles) == 5 and "float" in tensor.dtype:
        facts.append(("1, 25, 50, 75, 99 %", ", ".join(f"{level:.4g}" for level in tensor.quantiles)))
    facts.append(("not finite", f"{tensor.broken:.2%}" if tensor.broken else "none"))
    if tensor.examples > 1 and len(tensor.shape) > 1 and tensor.form:
        facts.append(("copies of an earlier example", f"{tensor.duplicates:,} of {tensor.examples:,}"))
        facts.append(("examples of one single value", f"{tensor.constant:,} of {tensor.examples:,}"))
    return [
        tag("h3", "Input ", tag("code", tensor.name), f" of {preview.model}, in its first training call"),
        tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts], class_="facts"),
        *_examples(tensor),
    ]


def _examples(tensor: TensorShown) -> list[Html]:
    drawn = tensor.drawn
    if not drawn:
        return []
    if tensor.form is Form.PICTURES:
        shown = [_figure(one, index) for index, one in enumerate(drawn)]
        first = f"The first {len(drawn)} examples, {tensor.scaling}."
        return [tag("p", first, class_="quiet"), tag("div", shown, class_="pictures")]
    if tensor.form is Form.SERIES:
        return [tag("div", [_spark(one, index) for index, one in enumerate(drawn[:MOST_ROWS])], class_="charts spark")]
    return [
        tag("div", _rows(tensor, drawn[:MOST_ROWS]), class_="scroll", tabindex=0, role="region", aria_label="examples")
    ]


def _called(one: Drawn, index: int) -> str:
    return f"{index + 1}: {one.target}" if one.target else f"{index + 1}"


def _figure(one: Drawn, index: int) -> Html:
    words = f"example {index + 1}" + (f", target {one.target}" if one.target else "")
    image = tag("img", src=png.picture(one), alt=words, width=one.width, height=one.height)
    return tag("figure", image, tag("figcaption", _called(one, index)))


def _spark(one: Drawn, index: int) -> Html:
    finite = [value for value in one.numbers if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    height = (high - low) or 1.0
    points = " ".join(
        f"{i * 300 / max(1, len(one.numbers) - 1):.1f},{44 - 40 * (value - low) / height:.1f}"
        for i, value in enumerate(one.numbers)
        if value is not None
    )
    words = f"example {index + 1}, from {low:.3g} to {high:.3g}" + (f", target {one.target}" if one.target else "")
    drawing = tag("svg", tag("title", words), tag("polyline", points=points), viewBox="0 0 300 48", role="img")
    return tag("figure", drawing, tag("figcaption", words))


def _rows(tensor: TensorShown, drawn: Sequence[Drawn]) -> Html:
    has_target = any(one.target for one in drawn)
    has_text = any(one.text for one in drawn)
    width = max(len(one.numbers) for one in drawn)
    columns = ["text"] if has_text else ["ids"] if tensor.form is Form.IDS else [str(i) for i in range(width)]
    head = [
        tag("th", word, class_="text" if word in ("text", "ids") else None)
        for word in ["example", *columns, *(["target"] if has_target else [])]
    ]
    rows = []
    for index, one in enumerate(drawn):
        if has_text:
            cells = [tag("td", one.text, class_="text mono")]
        elif tensor.form is Form.IDS:
            cells = [tag("td", " ".join(_number(value) for value in one.numbers), class_="text mono")]
        else:
            cells = [tag("td", _number(value)) for value in one.numbers]
        rows.append(tag("tr", tag("th", str(index + 1)), cells, tag("td", one.target) if has_target else None))
    return tag("table", tag("thead", tag("tr", head)), tag("tbody", rows))


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _target(target: Targets, preview: Preview) -> list[Html]:
    parts = [tag("h3", "Targets given to ", tag("code", target.loss)), tag("p", target_sentence(target))]
    if not target.counts:
        return parts
    most = max(target.counts.values())
    shown = list(target.counts.items())
    if len(shown) > MOST_BARS:
        shown = sorted(shown, key=lambda item: -item[1])[:MOST_BARS]
        parts.append(tag("p", f"The {MOST_BARS} most frequent of {len(target.counts):,} classes:", class_="quiet"))
    bars = [
        (
            tag("span", class_word(int(value), preview.class_names)),
            tag("span", tag("span", class_="bar", style=f"width:{100 * count / most * 0.8:.1f}%"), f"{count:,}"),
        )
        for value, count in shown
    ]
    return [*parts, tag("div", bars, class_="bars")]


def _filters(layer: FirstLayer) -> list[Html]:
    moved = f" They have moved by {layer.moved:.2%} of their size." if layer.moved is not None else ""
    what = f"{min(layer.count, len(layer.start.pictures))} of the {layer.count} filters"
    colours = "grey is 0" if _in_colour(layer.start) else "blue is below 0, white 0, orange above"
    return [
        tag("h3", f"First-layer filters: {layer.kind} ", tag("code", layer.name or "(the model itself)")),
        tag("p", f"{what}, {colours}.{moved}"),
        tag(
            "div",
            _filter_grid("before training", layer.start),
            _filter_grid(f"after step {layer.end.step}", layer.end),
            class_="pair",
        ),
    ]


def _in_colour(filters: Filters) -> bool:
    return any(one.channels == 3 for one in filters.pictures)


def _filter_grid(title: str, filters: Filters) -> Html:
    images = [
        tag("img", src=png.weights(one), alt=f"filter {index + 1} {title}", width=one.width, height=one.height)
        for index, one in enumerate(filters.pictures)
    ]
    words = f"{title} (largest weight {filters.scale:.3g})"
    return tag("div", tag("h4", words), tag("div", images, class_="pictures filters"))


def _dynamics(dynamics: Dynamics, preview: Preview) -> list[Html]:
    shots, rows = dynamics.snapshots, len(dynamics.snapshots[0].values)
    colours = _Colours(dynamics)
    pixels = b"".join(bytes(colours.of(shot.values[row])) for row in range(rows) for shot in shots)
    summary = " ".join(prediction_sentences(preview))
    strip = tag("img", src=png.data_uri(len(shots), rows, 3, pixels), alt=f"predictions by step: {summary}")
    ends = tag(
        "div",
        tag("span", f"step {shots[0].step}"),
        tag("span", _middle(shots)),
        tag("span", f"step {shots[-1].step}"),
        class_="ends quiet",
    )
    heat = [strip]
    if len(dynamics.targets) == rows:
        aims = b"".join(bytes(colours.of(value)) for value in dynamics.targets)
        heat.append(tag("img", src=png.data_uri(1, rows, 3, aims), alt="targets"))
    below = [ends, tag("span", "target", class_="quiet")] if len(heat) > 1 else [ends]
    what = {
        PredictionKind.CLASS: "the class with the highest score",
        PredictionKind.VALUE: "the output",
        PredictionKind.RIGHT: "the share of positions predicted right",
        PredictionKind.SPREAD: "the deviation within the output",
    }[dynamics.kind]
    mode = "training mode" if dynamics.training_mode else "evaluation mode"
    mode += ", with the same dropout each time" if dynamics.training_mode and dynamics.asked else ""
    words = f"A row is an example of {dynamics.batch}, a column one of {len(shots)} looks at the model in {mode}"
    return [
        tag("h3", "Predictions on a fixed batch"),
        tag("p", summary),
        tag("p", f"{words}; its colour is {what}.", class_="quiet"),
        tag("div", heat, below, class_="heat", style=f"--rows:{max(4, min(rows * 11, 360))}px"),
        colours.legend(preview.class_names),
    ]


def _middle(shots: Sequence[Snapshot]) -> str:
    return f"step {shots[len(shots) // 2].step}" if len(shots) > 2 else ""


class _Colours:
    """A colour for each class, or for each number between the lowest and the highest."""

    def __init__(self, dynamics: Dynamics) -> None:
        seen = [value for shot in dynamics.snapshots for value in shot.values if value is not None]
        seen += [value for value in dynamics.targets if value is not None]
        self._of_classes = dynamics.kind is PredictionKind.CLASS
        self._seen = sorted(set(seen))
        self._low, self._high = min(seen, default=0.0), max(seen, default=1.0)

    def of(self, value: float | None) -> tuple[int, int, int]:
        if value is None:
            return BROKEN
        if self._of_classes:
            return _class_colour(self._seen.index(value))
        share = (value - self._low) / (self._high - self._low) if self._high > self._low else 0.5
        place = share * (len(RAMP) - 1)
        left = min(int(place), len(RAMP) - 2)
        red, green, blue = (
            round(one + (place - left) * (other - one)) for one, other in zip(RAMP[left], RAMP[left + 1], strict=True)
        )
        return red, green, blue

    def legend(self, names: Sequence[str]) -> Html:
        if self._of_classes:
            items = [(self.of(value), class_word(int(value), names)) for value in self._seen[:MOST_CHIPS]]
            more = len(self._seen) - len(items)
        else:
            middle = (self._low + self._high) / 2
            items = [(self.of(value), f"{value:.4g}") for value in dict.fromkeys((self._low, middle, self._high))]
            more = 0
        chips = [tag("li", tag("i", style=f"background:rgb{colour}".replace(" ", "")), word) for colour, word in items]
        return tag("ul", chips, tag("li", f"and {more} more") if more else None, class_="chips")


def _class_colour(index: int) -> tuple[int, int, int]:
    if index < len(CLASSES):
        red, green, blue = bytes.fromhex(CLASSES[index])
        return red, green, blue
    red, green, blue = (
        round(255 * part) for part in colorsys.hls_to_rgb(index * 0.618 % 1, 0.35 + 0.3 * (index % 3) / 2, 0.6)
    )
    return red, green, blue
