"""Rules about magnitudes, on records made by hand: sick numbers are named, healthy ones leave the rules calm."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from unstuck.events import (
    Activations,
    Clip,
    Event,
    Gauges,
    GroupFact,
    Histograms,
    LayersRan,
    ModelSeen,
    ModuleFact,
    NonFinite,
    OptimizerSeen,
    OptimizerStep,
    ParameterFact,
    Place,
    RunEnded,
    RunStarted,
    Setup,
    StateLoaded,
    TensorGauges,
    TensorsNamed,
)
from unstuck.findings.verdict import Verdict
from unstuck.judge import judge
from unstuck.record import Record
from unstuck.rule import Rule, find_rule

CODES = ("O07", "O22", "O25", "O26", "G04", "G05", "G07", "G08", "G09", "G17", "G18", "M14")
NAMES = tuple(f"layers.{index}.weight" for index in range(6))
SIZE = 4096
BUILT = Place("train.py", 10)

Level = float | Callable[[int], float]


def at(level: Level, step: int) -> float:
    return level(step) if callable(level) else level


def noisy(level: Level, share: float = 0.01, seed: int = 0) -> Callable[[int], float]:
    chance = random.Random(seed)
    values = [at(level, step) * (1 + chance.gauss(0, share)) for step in range(400)]
    return lambda step: values[step]


class Run:
    """A training run told in numbers: one level, or one per tensor, of each gauge."""

    def __init__(self, losses: Level, steps: int = 100, **facts: Any) -> None:
        self.losses = losses
        self.steps = steps
        self.kind: str = facts.get("kind", "SGD")
        self.rate: Level = facts.get("rate", 0.01)
        self.ratio: Sequence[Level] | Level = facts.get("ratio", 1e-3)
        self.gradient: Sequence[Level] | Level = facts.get("gradient", 0.1)
        self.weight: Sequence[Level] | Level = facts.get("weight", 3.0)
        self.norm: Level = facts.get("norm", 1.0)
        self.limit: float | None = facts.get("limit")
        self.clipped_norm: Level = facts.get("clipped_norm", self.norm)
        self.optimizers: int = facts.get("optimizers", 1)
        self.modules: tuple[str, ...] = facts.get("modules", ("Linear",))
        self.groups: tuple[int, ...] = facts.get("groups", (0,) * len(NAMES))
        self.group_rates: tuple[float, ...] = facts.get("group_rates", ())
        self.extra: Sequence[Event] = facts.get("extra", ())
        self.decay: float = facts.get("decay", 0.0)
        self.kinds: tuple[str, ...] = facts.get("kinds", ("Linear",) * len(NAMES))

    def record(self) -> Record:
        parameters = tuple(ParameterFact(name, index, (64, 64)) for index, name in enumerate(NAMES))
        modules = tuple(ModuleFact(f"layers.{index}", kind) for index, kind in enumerate(self.modules))
        events: list[Event] = [
            RunStarted(script="train.py"),
            ModelSeen(model="model", kind="Net", parameters=parameters, modules=modules, place=Place("train.py", 20)),
        ]
        for number in range(self.optimizers):
            seen = OptimizerSeen(optimizer=self._label(number), kind=self.kind, parameters=parameters, place=BUILT)
            group = GroupFact(size=len(NAMES), rate=at(self.rate, 0), weight_decay=self.decay)
            events.append(OptimizerSeen(**{**_fields(seen), "groups": (group,)}))
            events.append(
                TensorsNamed(
                    optimizer=self._label(number),
                    names=NAMES,
                    kinds=self.kinds,
                    sizes=(SIZE,) * len(NAMES),
                    dimensions=(2,) * len(NAMES),
                    groups=self.groups,
                    depths=tuple(range(len(NAMES))),
                )
            )
        for step in range(self.steps):
            for number in range(self.optimizers):
                events += self._step(step, self._label(number))
        return Record(Path("events.jsonl"), (*events, *self.extra, RunEnded(steps=self.steps)), False)

    def _label(self, number: int) -> str:
        return f"optimizer {number}"

    def _step(self, step: int, optimizer: str) -> list[Event]:
        loss = at(self.losses, step)
        rates = self.group_rates or (at(self.rate, step),)
        clip = [
            Clip(step=step, limit=self.limit, norm=at(self.clipped_norm, step), with_grad=6, parameters=6,
                 place=Place("train.py", 24))
        ] if self.limit is not None else []  # fmt: skip
        return [
            *clip,
            OptimizerStep(step=step, optimizer=optimizer, grad_norm=at(self.norm, step), place=Place("train.py", 25)),
            Gauges(step=step, optimizer=optimizer, loss=loss if math.isfinite(loss) else None, rates=rates),
            TensorGauges(
                step=step,
                optimizer=optimizer,
                grad_norm=self._row(self.gradient, step),
                weight_norm=self._row(self.weight, step),
                update_ratio=self._row(self.ratio, step),
            ),
        ]

    def _row(self, levels: Sequence[Level] | Level, step: int) -> tuple[float, ...]:
        if callable(levels) or isinstance(levels, float):
            return (at(levels, step),) * len(NAMES)
        return tuple(at(level, step) for level in levels)

    def verdict(self) -> Verdict:
        rules: list[Rule] = [rule for code in CODES if (rule := find_rule(code)) is not None]
        return judge(record=self.record(), rules=rules)

    def found(self) -> list[str]:
        verdict = self.verdict()
        assert not verdict.failures
        return [diagnosis.lead.code for diagnosis in verdict.diagnoses]


def _fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def falling(step: int) -> float:
    return 2.3 * math.exp(-step / 30) + 0.1


def crawling(step: int) -> float:
    return 2.3 - 0.001 * step


FLAT = noisy(2.3)


# What is healthy


@pytest.mark.parametrize(
    "facts",
    [
        {"ratio": 1e-7},  # tiny updates are fine while the loss falls
        {"ratio": 0.5},
        {"norm": 1e4, "gradient": 1e4},
        {"norm": 1e-9, "gradient": [1e-12, 1e-11, 1e-10, 1e-9, 1e-8, 1e-7]},
        {"norm": lambda step: 100.0 if step in (30, 60) else 1.0},  # a spike that hurts nothing
        {"limit": 0.01, "clipped_norm": 5.0},  # clipped in every step, and it learns
        {"limit": 1000.0},
        {"modules": ("LSTM", "Linear")},
        {"ratio": [1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 0.9]},
    ],
)
def test_a_magnitude_alone_is_no_finding(facts: dict[str, Any]) -> None:
    assert Run(falling, **facts).found() == []


@pytest.mark.parametrize("losses", [FLAT, crawling, noisy(lambda step: 1 + step / 30)])
def test_a_loss_alone_is_no_finding(losses: Level) -> None:
    assert Run(losses).found() == []


@pytest.mark.parametrize("losses", [FLAT, noisy(lambda step: 0.5 + step / 30), crawling])
@pytest.mark.parametrize("ratio", [1e-6, 0.3])
def test_optimizers_that_take_turns_need_no_falling_loss(losses: Level, ratio: float) -> None:
    assert Run(losses, ratio=ratio, norm=200.0, optimizers=2).found() == []


def test_a_loss_that_changes_its_sign_has_no_level_to_jump_from() -> None:
    chance = random.Random(1)
    losses = [chance.gauss(0, 1) for _ in range(100)]
    assert Run(lambda step: losses[step], ratio=0.3, kind="Adam").found() == []


# Learning rates


def test_a_crawling_loss_with_tiny_updates_and_healthy_gradients_has_too_low_a_rate() -> None:
    verdict = Run(crawling, ratio=1e-5, rate=1e-5).verdict()
    (diagnosis,) = verdict.diagnoses
    assert diagnosis.lead.code == "O07"
    assert diagnosis.lead.place == BUILT
    assert "1.0e-05" in diagnosis.lead.message
    assert "1e-3" in diagnosis.lead.fix.text, "a rate a hundred times as high"


def test_a_flat_loss_with_hardly_any_update_has_too_low_a_rate() -> None:
    assert Run(FLAT, ratio=1e-8).found() == ["O07"]


def test_a_rate_that_was_right_once_is_not_too_low() -> None:
    assert "O07" not in Run(FLAT, ratio=lambda step: 2e-3 if step < 20 else 1e-7).found()


def test_a_rate_that_is_being_warmed_up_is_not_too_low() -> None:
    assert Run(crawling, ratio=lambda step: 1e-7 * step, rate=lambda step: 1e-6 * (step + 1)).found() == []


def test_a_loaded_model_that_has_nothing_more_to_learn_is_left_alone() -> None:
    assert Run(FLAT, ratio=1e-5, extra=[StateLoaded(model="model", matched=6, tensors=6)]).found() == []


def test_no_rate_at_all_is_another_matter() -> None:
    assert "O07" not in Run(FLAT, ratio=0.0, rate=0.0).found()


def test_vanishing_gradients_are_not_laid_to_the_rate() -> None:
    fading = [10.0**-power for power in (12, 10, 8, 6, 4, 2)]
    assert Run(FLAT, ratio=1e-6, gradient=fading).found() == ["G09"]


def exploding(step: int) -> float:
    return 2.3 if step == 0 else min(2.3 * 10**step, 1e20)


def test_updates_larger_than_the_weights_and_a_loss_that_explodes_are_too_high_a_rate() -> None:
    run = Run(exploding, ratio=2.0, rate=10.0, norm=lambda step: min(1.0 * 10**step, 1e20))
    verdict = run.verdict()
    assert verdict.diagnoses[0].lead.code == "M14"
    assert verdict.diagnoses[0].lead.place == BUILT
    assert "G08" in verdict.diagnoses[0].explains


def test_a_loss_that_jumped_at_once_and_stays_where_it_fell_to() -> None:
    def jumped(step: int) -> float:
        return 2.3 if step == 0 else 900.0 if step < 4 else 2.4

    assert Run(jumped, ratio=lambda step: 8.0 if step < 3 else 0.05, kind="Adam", rate=1.0).found()[0] == "M14"


def test_a_jump_from_which_the_loss_recovered_is_forgiven() -> None:
    def recovered(step: int) -> float:
        return 2.3 if step == 0 else 900.0 if step < 4 else 0.5

    assert Run(recovered, ratio=lambda step: 8.0 if step < 3 else 0.01, kind="Adam", rate=1.0).found() == []


def test_one_odd_batch_is_no_jump() -> None:
    odd = [30.0 if step in (1, 15) else 2.3 for step in range(100)]
    assert Run(lambda step: odd[step], ratio=0.08, kind="Adam").found() == []


def test_a_smaller_jump_counts_where_the_first_updates_replaced_the_weights() -> None:
    def jumped(step: int) -> float:
        return 2.6 if step == 0 else 12.0 if step < 8 else 2.5

    assert Run(jumped, ratio=lambda step: 10.0 if step < 5 else 0.04, kind="AdamW", rate=2.0).found() == ["M14"]
    assert Run(jumped, ratio=0.04, kind="AdamW").found() == []


def test_a_loss_that_swings_with_every_step() -> None:
    verdict = Run(lambda step: 1.0 + (step % 2), ratio=0.2, rate=1.0).verdict()
    (diagnosis,) = verdict.diagnoses
    assert diagnosis.lead.code == "M14"
    assert "swings between 1 and 2" in diagnosis.lead.message


def test_a_rising_loss_at_usual_updates_is_not_laid_to_the_rate() -> None:
    assert "M14" not in Run(noisy(lambda step: 1 + step / 10), ratio=2e-3).found()


def test_exploded_gradients_at_a_sane_rate_are_told_apart() -> None:
    assert Run(exploding, ratio=2.0, rate=0.01, norm=1e5).found()[0] == "G08"


# Update ratios


def test_one_tensor_far_ahead_of_its_peers() -> None:
    ratios = [1e-3, 1e-3, 0.4, 1e-3, 1e-3, 1e-3]
    verdict = Run(FLAT, ratio=ratios, groups=(0, 0, 1, 0, 0, 0), group_rates=(0.01, 3.0)).verdict()
    (diagnosis,) = verdict.diagnoses
    assert (diagnosis.lead.code, diagnosis.lead.subject.name) == ("O22", "layers.2.weight")
    assert "group from 3" in diagnosis.lead.fix.text


def test_a_tensor_that_began_at_zero_is_no_peer() -> None:
    ratios = [1e-3, 1e-3, 0.4, 1e-3, 1e-3, 1e-3]
    assert Run(FLAT, ratio=ratios, weight=[3.0, 3.0, 1e-5, 3.0, 3.0, 3.0]).found() == []


def test_embeddings_are_no_peers() -> None:
    ratios = [0.4, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3]
    assert Run(FLAT, ratio=ratios, kinds=("Embedding", *["Linear"] * 5)).found() == []


def test_weights_that_are_overwritten_throughout_a_flat_run() -> None:
    assert Run(FLAT, ratio=0.3).found() == ["O22"]


def test_most_weights_standing_still_in_a_flat_run_unless_it_began_trained() -> None:
    ratios = [1e-7, 1e-7, 1e-7, 1e-7, 1e-7, 2e-3]
    assert Run(FLAT, ratio=ratios).found() == ["O22"]
    assert Run(FLAT, ratio=ratios, extra=[StateLoaded(model="model", matched=6, tensors=6)]).found() == []


def test_updates_that_are_mostly_weight_decay_are_not_laid_to_the_rate() -> None:
    assert Run(FLAT, ratio=0.2, rate=0.1, decay=2.0).found() == []


# Gradients


def hurt_at(*steps: int) -> Callable[[int], float]:
    """A loss that falls, and is thrown up after these steps for good."""
    return lambda step: falling(step) + sum(5.0 for one in steps if step > one)


def spike_at(*steps: int, height: float = 60.0) -> Callable[[int], float]:
    return lambda step: height if step in steps else 1.0


def test_a_spike_that_throws_the_loss_up_is_named_with_its_step() -> None:
    gradients = [spike_at(40, height=1.0), spike_at(40, height=59.0), *[0.1] * 4]
    verdict = Run(hurt_at(40), norm=spike_at(40), gradient=gradients).verdict()
    lead = verdict.diagnoses[0].lead
    assert lead.code == "G08"
    assert "At step 41 the gradient norm was 60, 60 times the usual 1" in lead.message
    assert any("layers.1.weight 59" in str(item.value) for item in lead.evidence)


def test_a_spike_of_the_batch_itself_is_no_explosion() -> None:
    outlier = [falling(step) * (20 if step == 40 else 1) for step in range(100)]
    assert Run(lambda step: outlier[step], norm=spike_at(40)).found() == []


def test_a_downward_leap_is_no_spike() -> None:
    assert Run(hurt_at(40), norm=lambda step: 0.001 if step == 40 else 1.0).found() == []


def test_gradients_that_grow_with_the_loss() -> None:
    growing = noisy(lambda step: 1.0 * 1.06**step)
    assert "G08" in Run(growing, norm=lambda step: 0.5 * 1.06**step).found()


@pytest.mark.parametrize(
    ("modules", "code"), [(("LSTM",), "G07"), (("CausalSelfAttention",), "G07"), (("Linear",), "G08")]
)
def test_a_missing_clip_is_named_where_such_models_need_one(modules: tuple[str, ...], code: str) -> None:
    assert Run(hurt_at(40), norm=spike_at(40), modules=modules).found()[0] == code


def test_a_clip_above_the_spikes_is_too_loose() -> None:
    verdict = Run(hurt_at(40), norm=spike_at(40), limit=500.0, modules=("LSTM",)).verdict()
    assert verdict.diagnoses[0].lead.code == "G05"
    assert "max_norm to about 1" in verdict.diagnoses[0].lead.fix.text
    assert "G07" not in [diagnosis.lead.code for diagnosis in verdict.diagnoses]


def test_a_clip_that_acts_is_not_too_loose() -> None:
    assert "G05" not in Run(hurt_at(40), norm=spike_at(40), limit=10.0, clipped_norm=spike_at(40)).found()


def test_a_norm_of_a_million_only_measures() -> None:
    assert "G05" not in Run(hurt_at(40), norm=spike_at(40), limit=1e9).found()


def test_clipping_every_step_of_a_crawling_run_names_a_threshold_from_its_norms() -> None:
    run = Run(crawling, norm=0.01, limit=0.01, clipped_norm=noisy(3.0, 0.1), ratio=1e-5)
    verdict = run.verdict()
    lead = verdict.diagnoses[0].lead
    assert lead.code == "G04"
    assert "max_norm to about 3" in lead.fix.text
    assert [diagnosis.lead.code for diagnosis in verdict.diagnoses] == ["G04"], "and not the rate"


def test_adam_does_not_mind_being_clipped_in_every_step() -> None:
    assert Run(crawling, kind="AdamW", limit=0.01, clipped_norm=3.0).found() == []


def slowly(step: int) -> float:
    return 0.86 - 0.0008 * step


def test_clipping_every_step_to_a_fraction_of_its_norm_is_slow_though_the_loss_falls() -> None:
    facts = {"norm": 1e-3, "limit": 1e-3, "clipped_norm": noisy(0.9, 0.1), "ratio": 1.6e-4}
    lead = Run(slowly, 300, **facts).verdict().diagnoses[0].lead
    assert lead.code == "G04"
    assert "the loss fell only from 0.86 to 0.633 in 300 steps" in lead.message
    assert Run(slowly, 300, **facts, kind="AdamW").found() == []
    assert Run(slowly, 300, **{**facts, "ratio": 1e-3}).found() == [], "the weights move as they should"
    assert Run(slowly, 300, **{**facts, "clipped_norm": 0.03}).found() == []
    assert Run(lambda step: 0.6 + 0.26 * math.exp(-step / 30), 300, **facts).found() == [], "it has levelled off"


def test_gradients_that_vanish_along_the_depth_of_a_stuck_run() -> None:
    fading = [10.0**-power for power in (9, 8, 6, 4, 2, 1)]
    verdict = Run(FLAT, gradient=fading).verdict()
    (diagnosis,) = verdict.diagnoses
    assert (diagnosis.lead.code, diagnosis.lead.subject.name) == ("G09", "layers.0.weight")


@pytest.mark.parametrize(("kind", "advised"), [("Sigmoid", True), ("ReLU", False)])
def test_other_activations_are_advised_only_where_they_squash(kind: str, advised: bool) -> None:
    fading = [10.0**-power for power in (9, 8, 6, 4, 2, 1)]
    (diagnosis,) = Run(FLAT, gradient=fading, modules=("Linear", kind)).verdict().diagnoses
    assert ("Use ReLU or GELU" in diagnosis.lead.fix.text) is advised
    assert "kaiming_normal_" in diagnosis.lead.fix.text


def test_a_total_of_almost_nothing_vanishes_too() -> None:
    assert Run(FLAT, norm=1e-8, gradient=1e-8).found() == ["G09"]


def test_a_perfect_loss_needs_no_gradient() -> None:
    assert Run(1e-9, norm=1e-8, gradient=1e-8).found() == []


def test_a_layer_that_loses_its_gradient_in_a_flat_run() -> None:
    gone: list[Level] = [0.1, 0.1, lambda step: 0.1 if step < 8 else 0.0, 0.1, 0.1, 0.1]
    verdict = Run(FLAT, gradient=gone).verdict()
    (diagnosis,) = verdict.diagnoses
    assert diagnosis.lead.code == "G18"
    assert "From step 9 on, layers.2.weight has no gradient" in diagnosis.lead.message


def test_gradients_larger_than_the_weights_in_a_run_that_breaks() -> None:
    assert "G18" in Run(exploding, ratio=0.02, gradient=9.0, norm=22.0).found()
    assert "G18" not in Run(exploding, ratio=0.02, gradient=9.0, norm=22.0, kind="Adam").found()


# Activations, histograms, initial scales


def activations(shares: Sequence[float], kind: str = "relu", field: str = "dead", inputs: int = 64) -> list[Event]:
    names = ("act1", "act2", "act3")
    return [
        Activations(step=step, names=names, kinds=(kind,) * 3, inputs=inputs, **{field: (0.1, share, 0.1)})
        for step, share in enumerate(shares)
    ]


@pytest.mark.parametrize("shares", [[0.95] * 20, [0.1, 0.2, 0.4, 0.6], [1.0] * 5])
def test_dead_units_in_a_flat_run(shares: list[float]) -> None:
    verdict = Run(FLAT, extra=activations(shares)).verdict()
    (diagnosis,) = verdict.diagnoses
    assert (diagnosis.lead.code, diagnosis.lead.subject.name) == ("O25", "act2")
    inputs = 64 * min(10, len(shares))
    assert f"{shares[-1]:.0%} of the units of act2 were 0 for each of {inputs} inputs" in diagnosis.lead.message


def test_sparse_units_are_healthy() -> None:
    assert Run(FLAT, extra=activations([0.5] * 20)).found() == []
    assert Run(falling, extra=activations([0.95] * 20)).found() == []
    assert Run(FLAT, extra=activations([0.95] * 20, inputs=4)).found() == []


def test_saturated_tanh_and_a_saturated_output_that_the_loss_wants() -> None:
    assert Run(FLAT, extra=activations([0.97] * 20, "tanh", "saturated")).found() == ["O25"]
    last = [Activations(names=("out",), kinds=("sigmoid",), saturated=(1.0,), inputs=640)] * 20
    assert Run(FLAT, extra=last).found() == []


def histograms(of: str, *shapes: dict[int, int]) -> list[Event]:
    """Per event, counts by power of two (0 counts values in [1/2, 1)), the same for every tensor."""
    rows = []
    for shape in shapes:
        counts = [0] * 60
        for power, count in shape.items():
            counts[power + 40] = count
        rows.append(Histograms(of=of, lowest=-40, counts=(tuple(counts),) * len(NAMES)))
    return list(rows)


USUAL = {-3: 200, -4: 300, -5: 300, -6: 200}
COLLAPSED = {-23: 200, -24: 300, -25: 300, -26: 200}
TAILED = {-20: 500, -21: 496, -2: 4}


def test_weights_that_collapse_are_laid_to_the_decay() -> None:
    verdict = Run(FLAT, extra=histograms("weights", USUAL, COLLAPSED, COLLAPSED), decay=5.0).verdict()
    (diagnosis,) = verdict.diagnoses
    assert diagnosis.lead.code == "O26"
    assert diagnosis.lead.fix.text.startswith("Lower weight_decay=5")


def test_a_tail_that_a_norm_would_hide() -> None:
    verdict = Run(FLAT, extra=histograms("gradients", USUAL, TAILED, TAILED)).verdict()
    (diagnosis,) = verdict.diagnoses
    assert diagnosis.lead.code == "O26"
    assert "have grown outliers" in diagnosis.lead.message


def test_distributions_that_stay_or_belong_to_a_run_that_learns_are_left_alone() -> None:
    assert Run(FLAT, extra=histograms("weights", USUAL, USUAL, USUAL)).found() == []
    assert Run(FLAT, extra=histograms("gradients", TAILED, TAILED, TAILED)).found() == []
    assert Run(falling, extra=histograms("weights", USUAL, COLLAPSED, COLLAPSED)).found() == []
    assert Run(FLAT, extra=histograms("gradients", USUAL, USUAL, TAILED)).found() == [], "one step is no state"


def layers_ran(*sizes: float, kind: str = "ReLU") -> LayersRan:
    names = tuple(part for index in range(len(sizes)) for part in (f"layers.{index}", f"acts.{index}"))
    kinds = ("Linear", kind) * len(sizes)
    rms = tuple(value for size in sizes for value in (size, 0.7 * size))
    return LayersRan(model="model", names=names, kinds=kinds, rms=rms)


def test_a_signal_that_grows_from_layer_to_layer_names_the_initialisation_of_each() -> None:
    verdict = Run(FLAT, extra=[layers_ran(8.0, 60.0, 450.0, 3400.0)]).verdict()
    (diagnosis,) = verdict.diagnoses
    assert diagnosis.lead.code == "G17"
    assert "layer layers.0 with nn.init.kaiming_normal_ (He, std 0.18 instead of 0.047)" in diagnosis.lead.fix.text


def test_tanh_is_initialised_with_xavier() -> None:
    verdict = Run(FLAT, extra=[layers_ran(1.0, 0.03, 0.001, 0.0003, kind="Tanh")]).verdict()
    assert "xavier_normal_ (Xavier, std 0.12" in verdict.diagnoses[0].lead.fix.text


def test_an_extreme_initial_scale_is_said_of_any_run_and_a_notable_one_of_a_run_that_suffers() -> None:
    extreme, notable = layers_ran(10.0, 200.0, 4000.0, 80000.0), layers_ran(1.0, 4.5, 20.0, 90.0)
    assert Run(falling, extra=[extreme]).found() == ["G17"]
    assert Run(falling, extra=[notable]).found() == []
    assert Run(FLAT, extra=[notable]).found() == ["G17"]


def test_a_signal_that_fades_a_little_in_every_layer_explains_the_gradients() -> None:
    fading = [10.0**-power for power in (9, 8, 6, 4, 2, 1)]
    faint = layers_ran(0.03, 0.003, 3e-4, 3e-5, 3e-6, 3e-7)
    verdict = Run(FLAT, gradient=fading, extra=[faint, *activations([0.95] * 20)]).verdict()
    assert next((d.lead.code, d.explains) for d in verdict.diagnoses) == ("G17", ("G09", "O25"))


def test_layers_of_one_scale_and_a_small_last_layer_are_healthy() -> None:
    assert Run(FLAT, extra=[layers_ran(1.0, 0.9, 1.1, 0.8)]).found() == []
    assert Run(FLAT, extra=[layers_ran(1.0, 0.9, 1.1, 0.0)]).found() == []


def test_the_initial_scale_is_seen_in_live_objects_too() -> None:
    parameters = tuple(ParameterFact(name, index, (64, 64)) for index, name in enumerate(NAMES))
    model = ModelSeen(model="model", parameters=parameters)
    rule = find_rule("G17")
    assert rule is not None
    for layers, found in ((layers_ran(10.0, 200.0, 4000.0, 80000.0), 1), (layers_ran(1.0, 1.0, 1.0, 1.0), 0)):
        assert len(judge(setup=Setup(models=(model,), layers=(layers,)), rules=[rule]).diagnoses) == found


def test_a_non_finite_loss_without_growth_before_is_not_laid_to_magnitudes() -> None:
    losses = [falling(step) if step < 60 else math.nan for step in range(61)]
    broken = NonFinite(step=60, what="loss")
    assert Run(lambda step: losses[step], steps=61, ratio=0.3, extra=[broken]).found() == []
