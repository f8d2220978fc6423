"""Models, modes, optimizers and weights loaded: what only looks guilty stays silent, variants are found."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW

import unstuck
from unstuck.events import OptimizerSeen
from unstuck.judge import judge
from unstuck.record import Record
from unstuck.rule import find_rule

CODES = "O02 O05 O06 O10 O17 O18 O19 O20 O21 M09 M10 M12 R10 G16".split()
RULES = [rule for code in CODES if (rule := find_rule(code)) is not None]
Codes = Callable[[Callable[[], object]], set[str]]


@pytest.fixture
def found(recorded: Callable[[Callable[[], object]], Record]) -> Codes:
    """The codes of these rules that a run of the function shows."""

    def run(training: Callable[[], object]) -> set[str]:
        verdict = judge(record=recorded(training), rules=RULES)
        assert not verdict.failures
        return {diagnosis.lead.code for diagnosis in verdict.diagnoses}

    return run


def checked(**objects: object) -> set[str]:
    """The codes of these rules that a check of the objects shows."""
    return {diagnosis.lead.code for diagnosis in unstuck.check(**objects).diagnoses} & set(CODES)


def dropping() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 8)
    return x, x.sum(1, keepdim=True)


def step(model: nn.Module, *optimizers: torch.optim.Optimizer, **zeroing: bool) -> None:
    x, y = batch()
    for optimizer in optimizers:
        optimizer.zero_grad(**zeroing)
    F.mse_loss(model(x), y).backward()
    for optimizer in optimizers:
        optimizer.step()


def test_a_model_that_comes_in_eval_mode_is_found(found: Codes) -> None:
    def training() -> None:
        model = dropping().eval()
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(8):
            step(model, optimizer)

    assert found(training) == {"O05"}


def test_networks_that_only_judge_may_be_in_eval_mode(found: Codes) -> None:
    def training() -> None:
        features, model = dropping().eval(), nn.Linear(8, 8)
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(8):
            x, _y = batch()
            optimizer.zero_grad()
            F.mse_loss(features(model(x)), features(x).detach()).backward()
            optimizer.step()

    assert found(training) == set()


def test_an_attack_in_eval_mode_before_a_step_in_train_mode_is_fine(found: Codes) -> None:
    def training() -> None:
        model = dropping()
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(8):
            x, y = batch()
            model.eval()
            x.requires_grad_(True)
            F.mse_loss(model(x), y).backward()
            attacked = (x + 0.01 * x.grad.sign()).detach()
            model.train()
            optimizer.zero_grad()
            F.mse_loss(model(attacked), y).backward()
            optimizer.step()

    assert found(training) == set()


def test_dropout_kept_on_by_hand_for_an_estimate_is_fine(found: Codes) -> None:
    def training() -> None:
        model = dropping()
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(8):
            model.train()
            step(model, optimizer)
            model.eval()
            model[2].train()
            with torch.no_grad():
                F.mse_loss(*map(torch.squeeze, (model(batch()[0]), batch()[1])))

    assert found(training) == set()


def test_samples_drawn_without_gradients_are_no_evaluation(found: Codes) -> None:
    def training() -> None:
        generator, critic = dropping(), nn.Linear(1, 1)
        generator_optimizer = SGD(generator.parameters(), lr=0.01)
        critic_optimizer = SGD(critic.parameters(), lr=0.01)
        for _ in range(8):
            with torch.no_grad():
                fake = generator(batch()[0])
            critic_optimizer.zero_grad()
            F.mse_loss(critic(fake), torch.zeros(32, 1)).backward()
            critic_optimizer.step()
            step(generator, generator_optimizer)

    assert found(training) == set()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def trained_state() -> dict[str, Tensor]:
    model = Tagger()
    for _ in range(30):
        model(torch.randn(32, 8))
    return model.state_dict()


@pytest.mark.parametrize("prefix", ["module.", "encoder.model."])
def test_a_prefix_that_keeps_weights_from_loading_is_found(found: Codes, prefix: str) -> None:
    state = {f"{prefix}{name}": value for name, value in trained_state().items()}

    def training() -> None:
        model = Tagger()
        model.load_state_dict(state, strict=False)
        optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            step(model, optimizer)

    assert found(training) == {"O20"}


@pytest.mark.parametrize("part", ["body.", "head."])
def test_a_part_that_loads_is_fine(found: Codes, part: str) -> None:
    state = {name: value for name, value in trained_state().items() if name.startswith(part)}

    def training() -> None:
        model = Tagger()
        model.load_state_dict(state | {"old_head.weight": torch.zeros(3)}, strict=False)
        optimizer = SGD(model.parameters(), lr=0.001)
        for _ in range(5):
            step(model, optimizer)

    assert found(training) == set()


def test_a_second_try_that_loads_everything_is_fine(found: Codes) -> None:
    state = trained_state()

    def training() -> None:
        model = Tagger()
        result = model.load_state_dict({f"module.{name}": value for name, value in state.items()}, strict=False)
        assert result.missing_keys
        model.load_state_dict(state)
        optimizer = SGD(model.parameters(), lr=0.001)
        for _ in range(5):
            step(model, optimizer)

    assert found(training) == set()


@pytest.mark.parametrize(("to_none", "codes"), [(True, set()), (False, {"O17"})])
def test_frozen_parameters_move_only_with_gradients_of_zero(found: Codes, to_none: bool, codes: set[str]) -> None:
    def training() -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = AdamW(model.parameters(), lr=1e-3)
        for turn in range(20):
            if turn == 12:
                model[0].requires_grad_(False)
            step(model, optimizer, set_to_none=to_none)

    assert found(training) == codes


def test_frozen_statistics_that_follow_the_batches_are_found(found: Codes) -> None:
    def training() -> None:
        model = Tagger()
        model.load_state_dict(trained_state())
        model.body.requires_grad_(False)
        optimizer = SGD(model.head.parameters(), lr=0.01)
        for _ in range(25):
            x = 5 + torch.randn(32, 8)
            optimizer.zero_grad()
            F.mse_loss(model(x), x.sum(1, keepdim=True) / 40).backward()
            optimizer.step()

    assert found(training) == {"O18"}


def test_an_encoder_moved_by_hand_keeps_its_own_statistics(found: Codes) -> None:
    class Momentum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = Tagger()
            self.key = copy.deepcopy(self.query).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
                    slow.data = slow.data * 0.99 + fast.data * 0.01
                self.key(x)
            return self.query(x)

    def training() -> None:
        model = Momentum()
        optimizer = SGD(model.query.parameters(), lr=0.01)
        for _ in range(25):
            step(model, optimizer)

    assert found(training) == set()


def test_one_gradient_stepped_twice_is_found(found: Codes) -> None:
    def training() -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        everything, head = SGD(model.parameters(), lr=0.01), SGD(model[2].parameters(), lr=0.01)
        for _ in range(8):
            step(model, everything, head)

    assert found(training) == {"M10"}


def test_one_gradient_stepped_twice_explains_a_run_that_breaks(recorded: Callable[[Callable[[], object]], Record]):
    def training() -> None:
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        optimizers = SGD(model.parameters(), lr=3.0), AdamW(model.parameters(), lr=1e-3)
        for _ in range(60):
            step(model, *optimizers)

    verdict = judge(record=recorded(training))
    assert verdict.diagnoses[0].lead.code == "M10"
    assert "G10" in verdict.diagnoses[0].explains


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.mix(x)


class PlainList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Block() for _ in range(3)]
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def test_a_list_of_layers_called_in_several_lines_is_one_finding(
    recorded: Callable[[Callable[[], object]], Record],
) -> None:
    def training() -> None:
        model = PlainList()
        optimizer = Adam(model.parameters(), lr=1e-3)
        for _ in range(12):
            step(model, optimizer)

    (diagnosis,) = judge(record=recorded(training), rules=RULES).diagnoses
    assert diagnosis.lead.code == "O02"
    assert "12 parameters get gradients" in diagnosis.lead.message
    assert "LayerNorm.weight, LayerNorm.bias, Linear.weight, Linear.bias" in diagnosis.lead.message


def test_an_optimizer_built_anew_for_the_next_stage_is_fine(found: Codes) -> None:
    def training() -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        first, second = SGD(model[2].parameters(), lr=0.01), SGD(model.parameters(), lr=0.01)
        for _ in range(8):
            step(model, first)
        for _ in range(8):
            step(model, second)

    assert "M10" not in found(training)


@pytest.mark.parametrize(("rate", "codes"), [(1e-6, {"M12"}), (1e-2, set())])
def test_updates_are_lost_only_below_the_spacing(found: Codes, rate: float, codes: set[str]) -> None:
    def training() -> None:
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).bfloat16()
        optimizer = AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        x, y = batch()
        for _ in range(60):
            optimizer.zero_grad()
            F.mse_loss(model(x.bfloat16()).float(), y).backward()
            optimizer.step()

    assert found(training) == codes


@pytest.mark.parametrize("whole", [True, False])
def test_only_a_fresh_head_makes_a_fine_tuning(found: Codes, whole: bool) -> None:
    state = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64)).state_dict()

    def training() -> None:
        model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64))
        loaded = state if whole else {name: value for name, value in state.items() if name.startswith("0.")}
        result = model.load_state_dict(loaded, strict=whole)
        assert bool(result.missing_keys) is not whole
        optimizer = Adam(model.parameters(), lr=0.02)
        for _ in range(25):
            optimizer.zero_grad()
            F.mse_loss(model(batch()[0]).mean(1, keepdim=True), batch()[1]).backward()
            optimizer.step()

    assert found(training) == (set() if whole else {"O19"})


class Adapted(nn.Module):
    def __init__(self, size: int, reaches: bool = True) -> None:
        super().__init__()
        self.base = nn.Linear(size, size).requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(size, 2) / size**0.5)
        self.lora_B = nn.Parameter(torch.zeros(2, size))
        self.reaches = reaches

    def forward(self, x: Tensor) -> Tensor:
        adapted = x @ self.lora_A @ self.lora_B
        return self.base(x) + (adapted if self.reaches else adapted.detach())


@pytest.mark.parametrize(("reaches", "codes"), [(True, set()), (False, {"O21"})])
def test_adapters_need_a_gradient_after_the_first_step(found: Codes, reaches: bool, codes: set[str]) -> None:
    def training() -> None:
        model = nn.Sequential(Adapted(8), nn.ReLU(), Adapted(8, reaches), nn.Linear(8, 1))
        optimizer = Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for _ in range(40):
            step(model, optimizer)

    assert found(training) == codes


def test_a_program_that_builds_optimizers_all_the_time_does_not_flood_the_record(recorded) -> None:
    def training() -> None:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)), nn.Linear(8, 1))
        for _ in range(150):
            step(model, SGD(model.parameters(), lr=0.01))

    seen = list(recorded(training).of(OptimizerSeen))
    with_parameters = {event.optimizer for event in seen if event.parameters}
    assert len(with_parameters) == 8
    assert len({event.optimizer for event in seen}) == 100
    assert len(seen) < 300


def test_halves_are_judged_by_who_computes_in_them() -> None:
    model = nn.Linear(8, 1).half()
    assert "O10" in checked(model=model, optimizer=Adam(model.parameters(), lr=1e-2))
    assert "O10" not in checked(model=model, optimizer=Adam(model.parameters(), lr=1e-2, fused=True))
    assert "O10" not in checked(model=model, optimizer=SGD(model.parameters(), lr=1e-2))
    wide = nn.Linear(8, 1).bfloat16()
    assert checked(model=wide, optimizer=Adam(wide.parameters(), lr=1e-2)) == set()


def test_a_check_of_healthy_objects_says_nothing_and_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    step(model, optimizer)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict(), torch.get_rng_state()))
    gradients = [parameter.grad for parameter in model.parameters()]
    assert checked(model=model, loss_fn=nn.MSELoss(), optimizer=optimizer, batch=batch_like()) == set()
    after = (model.state_dict(), optimizer.state_dict(), torch.get_rng_state())
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert all(one is other for one, other in zip(gradients, (p.grad for p in model.parameters()), strict=True))


def batch_like() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, 256).reshape(32, 8)
    return x, x.sum(1, keepdim=True)


def test_deep_stacks_and_dropout_before_norm_are_seen_in_objects() -> None:
    deep = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.Sigmoid())))
    assert checked(model=nn.Sequential(Tagger(), deep)) == {"G16"}
    assert checked(model=nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.BatchNorm1d(8))) == {"R10"}
    assert checked(model=nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0), nn.BatchNorm1d(8))) == set()
    assert checked(model=nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 8), nn.BatchNorm1d(8))) == set()
