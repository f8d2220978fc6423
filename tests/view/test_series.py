"""What the page draws: charts over the steps, matrices by layer, histograms, and how they are thinned."""

from __future__ import annotations

import math

import pytest

from tests.view.records import events_of_a_run, record_of, scaler
from unstuck.events import Evaluated, Gauges, NonFinite, Scored, TensorGauges, TensorsNamed
from unstuck.findings.verdict import Verdict
from unstuck.judge import judge
from unstuck.view.answer import key_of
from unstuck.view.layers import layers
from unstuck.view.moments import first_seen
from unstuck.view.thin import packed, thinned, trend
from unstuck.view.timeline import Chart, Style, timeline


def charts_of(*events: object) -> dict[str, Chart]:
    record = record_of(*events)  # type: ignore[arg-type]
    return {chart.name: chart for chart in timeline(record, Verdict())}


def test_a_spike_and_a_gap_survive_thinning() -> None:
    values: list[float | None] = [math.sin(step / 50) for step in range(10_000)]
    values[4321], values[7777] = 99.0, None
    steps, kept = thinned(range(10_000), values, 400)
    assert len(steps) <= 400
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (0, 9999)
    assert kept[steps.index(4321)] == 99.0
    assert kept[steps.index(7777)] is None


def test_short_lines_are_whole_and_numbers_short() -> None:
    assert thinned([1, 2, 3], [1.0, math.inf, 0.123456789], 10) == ([1, 2, 3], [1.0, None, 0.12346])


def test_the_trend_is_in_the_middle_of_its_noise() -> None:
    noisy = [1 + 0.5 * (-1) ** step - step / 1000 for step in range(1000)]
    places, medians = trend(range(1000), noisy, 50)
    assert len(places) == 50
    assert all(abs((median or 0) - (1 - place / 1000)) < 0.55 for place, median in zip(places, medians, strict=True))
    assert trend(range(10), [1.0] * 10) == ([], [])


def test_cells_of_a_matrix_are_exact_to_four_digits() -> None:
    rows = [[1e-7, 3.3e-4, None], [1.0, 0.0, 12.5]]
    matrix = packed(rows, log=True)
    assert matrix.row(0)[2] is None
    assert matrix.row(0)[:2] == pytest.approx([1e-7, 3.3e-4], rel=1e-3)
    assert matrix.row(1) == pytest.approx([1.0, 1e-7, 12.5], rel=1e-3)
    assert packed([[0.0, 0.25]], log=False).row(0) == pytest.approx([0.0, 0.25], abs=1e-4)
    assert packed([[-1.0, 7.0]], log=False).row(0) == [0.0, 1.0]  # a damaged record holds any number


def test_every_quantity_has_a_chart_with_what_is_healthy() -> None:
    charts = charts_of(*events_of_a_run(200, 3), *scaler(200))
    assert list(charts) == ["loss", "rates", "gradients", "clipping", "scale", "time", "memory"]
    assert all(chart.healthy.endswith(".") for chart in charts.values())
    assert all(chart.band is not None for name, chart in charts.items() if name != "loss")
    assert [line.style for line in charts["loss"].lines] == [Style.FAINT, Style.TREND]
    assert len(charts["loss"].lines[0].steps) == 200
    assert charts["rates"].lines[0].values[0] == 0.001
    assert [mark.step for mark in charts["scale"].marks] == [10, 11]
    assert "20 of 40 measured steps were clipped" in charts["clipping"].healthy
    parts = {line.label: line.values[3] for line in charts["time"].lines}
    assert parts == {"waiting for data": 1.0, "forward": 6.0, "backward": 8.0, "optimizer": 2.0, "everything else": 3.0}
    assert charts["memory"].lines[0].values[0] == 300.0


def test_a_guess_is_what_the_loss_must_beat() -> None:
    run = list(events_of_a_run(300, 1))
    scored = [
        Scored(step=step, loss="cross_entropy", cost=2.0, guess=2.3, labels=32, right=0.3, guess_right=0.1)
        for step in range(0, 300, 10)
    ]
    record = record_of(*sorted([*run, *scored, Evaluated(step=150, accuracy=0.4)], key=lambda event: event.step))
    charts = {chart.name: chart for chart in timeline(record, Verdict())}
    right = charts["right"]
    assert (right.band and right.band.low, right.unit) == (0.1, "%")
    assert [line.label for line in right.lines] == ["of the training batch", "in evaluation", "a guess"]


def test_a_loss_that_is_not_finite_ends_in_a_gap_with_a_mark() -> None:
    run = [Gauges(step=step, loss=1.0 if step < 20 else None) for step in range(30)]
    loss = charts_of(*run, NonFinite(step=20, what="loss"))["loss"]
    assert loss.lines[0].values[19:21] == [1.0, None]
    assert [(mark.step, mark.label) for mark in loss.marks] == [(20, "first nan in loss")]


def test_groups_with_the_same_rate_share_a_line() -> None:
    run = [Gauges(step=step, loss=1.0, rates=(0.1, 0.1, 0.01)) for step in range(20)]
    assert [line.label for line in charts_of(*run)["rates"].lines] == ["group 0 to 1", "group 2"]


def test_layers_are_in_the_order_of_execution() -> None:
    found = layers(record_of(*events_of_a_run(200, 3)))
    assert [tensor.name for tensor in found.tensors][:3] == ["blocks.0.weight", "blocks.0.bias", "blocks.1.weight"]
    assert found.tensors[0].layer == "blocks.0"
    assert [heat.name for heat in found.heatmaps] == ["update", "ratio", "gradient", "dead"]
    update, ratio, _, dead = found.heatmaps
    assert update.steps == list(range(0, 200, 10))
    assert update.matrix.row(0)[0] == pytest.approx(1e-3, rel=1e-3)
    assert ratio.matrix.row(1)[0] == pytest.approx(0.02 / 5, rel=1e-3)
    assert dead.of == "activations"
    assert dead.last(2) == pytest.approx(2 * 190 / 600, abs=1e-3)


def test_histograms_keep_the_bins_that_are_not_empty() -> None:
    ridges = layers(record_of(*events_of_a_run(300, 2))).weights[0]
    assert ridges.steps == [0, 100, 200]
    assert ridges.lowest == -40 + 31
    assert ridges.counts[0] == [45, 225, 449, 225, 45]
    assert ridges.zero == [0.0112] * 3


def test_optimizers_that_take_turns_fill_their_own_rows() -> None:
    def named(label: str) -> TensorsNamed:
        return TensorsNamed(
            optimizer=label, names=(f"{label}.w",), kinds=("",), sizes=(4,), dimensions=(2,), groups=(0,), depths=(0,)
        )

    turns = [
        TensorGauges(
            optimizer=label, step=step, update_ratio=(0.001 * (step + 1),), grad_norm=(1.0,), weight_norm=(1.0,)
        )
        for step in range(6)
        for label in ("DG"[step % 2],)
    ]
    update = layers(record_of(named("D"), named("G"), *turns)).heatmaps[0]
    assert update.matrix.row(0) == pytest.approx([0.001, 0.001, 0.003, 0.003, 0.005, 0.005], rel=1e-3)
    assert update.matrix.row(1)[0] is None


def test_thousands_of_tensors_leave_out_the_small_ones() -> None:
    found = layers(record_of(*events_of_a_run(20, 1000)))
    assert (len(found.tensors), found.left_out) == (1500, 500)
    assert sum(tensor.dimensions == 2 for tensor in found.tensors) == 1000


def test_findings_have_the_step_by_which_the_record_showed_them() -> None:
    run = [Gauges(step=step, loss=2.0 if step < 40 else None, rates=(0.1,)) for step in range(400)]
    record = record_of(*run[:40], NonFinite(step=40, what="loss", value="nan"), *run[40:])
    verdict = judge(record=record)
    keys = {key_of(diagnosis): diagnosis.lead.code for diagnosis in verdict.diagnoses}
    found = {keys[key]: step for key, step in first_seen(record, verdict).items()}
    assert found
    assert set(found.values()) == {90}
