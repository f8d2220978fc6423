"""The data of a run as the page shows it: what the model received, its targets, its filters, its predictions."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import msgspec

from unstuck.events import Drawn, Filters, Form, PredictionKind, TensorShown
from unstuck.findings.preview import Dynamics, FirstLayer, Preview, Targets
from unstuck.report.preview import class_word, input_sentences, prediction_sentences, target_sentence
from unstuck.view import png
from unstuck.view.thin import Number

MOST_BARS = 30
MOST_ROWS = 8
MOST_CHIPS = 20
BROKEN = (128, 128, 128)
RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Dark is low."""
CLASSES = ("4477aa", "ee6677", "228833", "ccbb44", "66ccee", "aa3377", "882255", "999933", "ddaa77", "44aa99")


class Picture(msgspec.Struct, frozen=True):
    """One picture, inside the page."""

    source: str
    width: int
    height: int
    caption: str
    words: str


class Wave(msgspec.Struct, frozen=True):
    """One example that is a series of numbers."""

    values: list[Number]
    words: str


class Input(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tensor that the model was given."""

    name: str
    facts: list[tuple[str, str]]
    note: str = ""
    pictures: list[Picture] = []
    waves: list[Wave] = []
    columns: list[str] = []
    rows: list[list[str]] = []
    is_text: bool = False


class Bar(msgspec.Struct, frozen=True):
    """A class and how often it came."""

    name: str
    count: int


class TargetPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the loss was given to compare with."""

    loss: str
    sentence: str
    bars: list[Bar] = []
    note: str = ""


class FilterPart(msgspec.Struct, frozen=True):
    """The first layer, then and now."""

    title: str
    sentence: str
    before_title: str
    before: list[Picture]
    after_title: str
    after: list[Picture]


class Chip(msgspec.Struct, frozen=True):
    """A colour and what it stands for."""

    colour: str
    word: str


class DynamicsPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Predictions for one batch over the run, as one picture: a row for each example, a column for each look."""

    sentence: str
    note: str
    picture: str
    rows: int
    steps: list[int]
    chips: list[Chip]
    targets: str = ""
    more: int = 0
    """Colours that are not listed."""


class DataPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of one model."""

    model: str
    sentences: list[str] = []
    inputs: list[Input] = []
    target: TargetPart | None = None
    filters: FilterPart | None = None
    dynamics: DynamicsPart | None = None
    trouble: str = ""


def data_of(previews: Sequence[Preview], when: str = ", in its first training call") -> list[DataPart]:
    """A part for each model."""
    return [
        DataPart(
            model=f"{preview.model}{when}",
            sentences=list(input_sentences(preview)),
            inputs=[_input(tensor) for tensor in preview.tensors],
            target=_target(preview.targets, preview) if preview.targets is not None else None,
            filters=_filters(preview.first_layer) if preview.first_layer is not None else None,
            dynamics=_dynamics(preview.dynamics, preview) if preview.dynamics and preview.dynamics.snapshots else None,
            trouble=preview.trouble,
        )
        for preview in previews
    ]


def _input(tensor: TensorShown) -> Input:
    facts = [("type", tensor.dtype), ("shape", " × ".join(str(length) for length in tensor.shape))]
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
    drawn = tensor.drawn
    if tensor.form is Form.PICTURES and drawn:
        note = f"The first {len(drawn)} examples, {tensor.scaling}."
        return Input(
            name=tensor.name, facts=facts, note=note, pictures=[_example(one, i) for i, one in enumerate(drawn)]
        )
    if tensor.form is Form.SERIES and drawn:
        waves = [_wave(one, index) for index, one in enumerate(drawn[:MOST_ROWS])]
        return Input(name=tensor.name, facts=facts, waves=waves)
    if not drawn:
        return Input(name=tensor.name, facts=facts)
    columns, rows = _table(tensor, drawn[:MOST_ROWS])
    return Input(name=tensor.name, facts=facts, columns=columns, rows=rows, is_text=tensor.form is Form.IDS)


def _example(one: Drawn, index: int) -> Picture:
    words = f"example {index + 1}" + (f", target {one.target}" if one.target else "")
    caption = f"{index + 1}: {one.target}" if one.target else f"{index + 1}"
    return Picture(png.picture(one), one.width, one.height, caption, words)


def _wave(one: Drawn, index: int) -> Wave:
    finite = [value for value in one.numbers if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    words = f"example {index + 1}, from {low:.3g} to {high:.3g}" + (f", target {one.target}" if one.target else "")
    return Wave([None if value is None else float(f"{value:.4g}") for value in one.numbers], words)


def _table(tensor: TensorShown, drawn: Sequence[Drawn]) -> tuple[list[str], list[list[str]]]:
    has_target = any(one.target for one in drawn)
    has_text = any(one.text for one in drawn)
    width = max(len(one.numbers) for one in drawn)
    columns = ["text"] if has_text else ["ids"] if tensor.form is Form.IDS else [str(index) for index in range(width)]
    rows = []
    for index, one in enumerate(drawn):
        if has_text:
            cells = [one.text]
        elif tensor.form is Form.IDS:
            cells = [" ".join(_number(value) for value in one.numbers)]
        else:
            cells = [_number(value) for value in one.numbers]
        rows.append([str(index + 1), *cells, *([one.target] if has_target else [])])
    return ["example", *columns, *(["target"] if has_target else [])], rows


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _target(target: Targets, preview: Preview) -> TargetPart:
    sentence = target_sentence(target)
    shown, note = list(target.counts.items()), ""
    if len(shown) > MOST_BARS:
        note = f"The {MOST_BARS} most frequent of {len(shown):,} classes:"
        shown = sorted(shown, key=lambda item: -item[1])[:MOST_BARS]
    bars = [Bar(class_word(int(value), preview.class_names), count) for value, count in shown]
    return TargetPart(target.loss, sentence, bars, note)


def _filters(layer: FirstLayer) -> FilterPart:
    moved = f" They have moved by {100 * layer.moved:.3g} % of their size." if layer.moved is not None else ""
    what = f"{min(layer.count, len(layer.start.pictures))} of the {layer.count} filters"
    in_colour = any(one.channels == 3 for one in layer.start.pictures)
    colours = "grey is 0" if in_colour else "blue is below 0, white 0, orange above"
    return FilterPart(
        f"First-layer filters: {layer.kind} {layer.name or '(the model itself)'}",
        f"{what}, {colours}.{moved}",
        f"before training (largest weight {layer.start.scale:.3g})",
        _filter_pictures("before training", layer.start),
        f"after step {layer.end.step} (largest weight {layer.end.scale:.3g})",
        _filter_pictures(f"after step {layer.end.step}", layer.end),
    )


def _filter_pictures(when: str, filters: Filters) -> list[Picture]:
    return [
        Picture(png.weights(one), one.width, one.height, "", f"filter {index + 1} {when}")
        for index, one in enumerate(filters.pictures)
    ]


def _dynamics(dynamics: Dynamics, preview: Preview) -> DynamicsPart:
    shots, rows = dynamics.snapshots, len(dynamics.snapshots[0].values)
    colours = _Colours(dynamics)
    pixels = b"".join(bytes(colours.of(shot.values[row])) for row in range(rows) for shot in shots)
    what = {
        PredictionKind.CLASS: "the class with the highest score",
        PredictionKind.VALUE: "the output",
        PredictionKind.RIGHT: "the share of positions predicted right",
        PredictionKind.SPREAD: "the deviation within the output",
    }[dynamics.kind]
    mode = "training mode" if dynamics.training_mode else "evaluation mode"
    mode += ", with the same dropout each time" if dynamics.training_mode and dynamics.asked else ""
    words = f"A row is an example of {dynamics.batch}, a column one of {len(shots)} looks at the model in {mode}"
    aims = b"".join(bytes(colours.of(value)) for value in dynamics.targets) if len(dynamics.targets) == rows else b""
    chips, more = colours.legend(preview.class_names)
    return DynamicsPart(
        " ".join(prediction_sentences(preview)),
        f"{words}; its colour is {what}.",
        png.data_uri(len(shots), rows, 3, pixels),
        rows,
        [shot.step for shot in shots],
        chips,
        png.data_uri(1, rows, 3, aims) if aims else "",
        more,
    )


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

    def legend(self, names: Sequence[str]) -> tuple[list[Chip], int]:
        """The colours with their words, and how many more there are."""
        if self._of_classes:
            items = [(self.of(value), class_word(int(value), names)) for value in self._seen[:MOST_CHIPS]]
            more = len(self._seen) - len(items)
        else:
            middle = (self._low + self._high) / 2
            items = [(self.of(value), f"{value:.4g}") for value in dict.fromkeys((self._low, middle, self._high))]
            more = 0
        return [Chip(f"rgb({red},{green},{blue})", word) for (red, green, blue), word in items], more


def _class_colour(index: int) -> tuple[int, int, int]:
    if index < len(CLASSES):
        red, green, blue = bytes.fromhex(CLASSES[index])
        return red, green, blue
    red, green, blue = (
        round(255 * part) for part in colorsys.hls_to_rgb(index * 0.618 % 1, 0.35 + 0.3 * (index % 3) / 2, 0.6)
    )
    return red, green, blue
