"""Reinforcement learning is judged by what the agent earns, in a script that nobody changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unstuck.events import EpisodesEnded
from unstuck.record import Record, read

Unstuck = Callable[..., subprocess.CompletedProcess[str]]

ENVIRONMENT = """
class Door:
    '''One of four doors has a prize; the observation says which.'''

    def reset(self):
        self.door, self.tries = random.randrange(4), 0
        return one_hot(self.door)

    def step(self, action):
        self.tries += 1
        if action is None:
            raise ValueError("no action")
        found = action == self.door
        return one_hot(self.door), 1.0 if found else -0.1, found or self.tries == 5
"""
SCRIPT = """
import inspect, random
import torch
from torch import nn

def one_hot(n):
    return torch.eye(4)[n]
{environment}
random.seed(0)
torch.manual_seed(0)
env = {make}
policy = nn.Linear(4, 4)
optimizer = torch.optim.Adam(policy.parameters(), lr={rate})
for episode in range({episodes}):
    observation, done, logs, earned = env.reset(), False, [], 0.0
    while not done:
        choice = torch.distributions.Categorical(logits=policy(observation))
        action = choice.sample()
        observation, reward, done = env.step(action.item())[:3]
        logs.append(choice.log_prob(action))
        earned += reward
    loss = -(torch.stack(logs).sum() * (earned - 0.5))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("rest of the random state", random.random(), torch.rand(1).item())
{end}
"""


def script(
    environment: str = ENVIRONMENT,
    *,
    make: str = "Door()",
    rate: float = 0.05,
    episodes: int = 400,
    end: str = "",
) -> str:
    return SCRIPT.format(environment=environment, make=make, rate=rate, episodes=episodes, end=end)


def bare() -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, timeout=120)


def record() -> Record:
    (folder,) = Path(".unstuck/runs").iterdir()
    return read(folder)


def test_an_agent_that_learns_is_said_to_by_what_it_earns(unstuck: Unstuck) -> None:
    Path("train.py").write_text(script())
    done = unstuck("run", "train.py")
    assert "Learns: return per episode" in done.stderr
    assert "in 400 episodes of Door." in done.stderr
    assert (done.returncode, done.stdout) == (0, bare().stdout)


@pytest.mark.slow
def test_an_agent_that_earns_no_more_than_at_first_is_in_trouble(unstuck: Unstuck) -> None:
    Path("train.py").write_text(script(rate=1e-9))
    done = unstuck("run", "train.py")
    assert "Does not learn: return per episode" in " ".join(done.stderr.split())
    assert "it ends no higher than it began" in " ".join(done.stderr.split())
    assert done.returncode == 1
    assert done.stdout == bare().stdout


def test_what_the_program_sees_of_its_own_class_is_unchanged(unstuck: Unstuck) -> None:
    end = "print(inspect.getsource(Door.step)); print(sorted(vars(Door)), vars(env)); env.step(None)"
    Path("train.py").write_text(script(episodes=30, end=end))
    done, plain = unstuck("run", "train.py"), bare()
    assert done.stdout == plain.stdout
    assert done.returncode == plain.returncode == 1
    assert done.stderr.startswith(plain.stderr)


@pytest.mark.slow
def test_an_environment_of_another_file(unstuck: Unstuck) -> None:
    Path("doors.py").write_text("import random, torch\ndef one_hot(n):\n    return torch.eye(4)[n]\n" + ENVIRONMENT)
    Path("train.py").write_text(script("from doors import Door", episodes=30))
    unstuck("run", "train.py")
    (event,) = record().of(EpisodesEnded)
    assert isinstance(event, EpisodesEnded)
    assert (event.environment, len(event.returns), event.each) == ("Door", 30, 1)
    assert all(value is not None and -0.5 <= value <= 1 for value in event.returns)
    assert event.place is not None
    assert event.place.path == "train.py"


ROW = """
class Row:
    def reset(self):
        self.time = torch.zeros(3)
        return torch.zeros(4)

    def step(self, action):
        self.time += torch.tensor([1.0, 2.0, 3.0])
        done = self.time >= 6
        self.time[done] = 0
        return torch.zeros(4), torch.tensor([1.0, 2.0, 3.0]), done, {}
"""


@pytest.mark.slow
def test_a_row_of_environments_has_a_return_each(unstuck: Unstuck) -> None:
    loop = script(ROW, make="Row()", episodes=1).replace("while not done", "for _ in range(60)")
    Path("train.py").write_text(loop.replace("earned += reward", "earned += reward.sum().item()"))
    unstuck("run", "train.py")
    (event,) = record().of(EpisodesEnded)
    assert isinstance(event, EpisodesEnded)
    assert set(event.returns) == {6.0}
    assert len(event.returns) == 10 + 20 + 30


GYMNASIUM = """
class Env:
    pass

class Wrapper(Env):
    def __init__(self, env):
        self.env = env
    def reset(self, **options):
        return self.env.reset(**options)
    def step(self, action):
        return self.env.step(action)

class ScaledReward(Wrapper):
    def step(self, action):
        observation, reward, *ends = self.env.step(action)
        return (observation, 1000 * reward, *ends)

class TimeLimit(Wrapper):
    def reset(self, **options):
        self.left = 5
        return self.env.reset(**options)
    def step(self, action):
        self.left -= 1
        observation, reward, terminated, truncated, facts = self.env.step(action)
        return observation, reward, terminated or self.left == 0, self.left == 0, facts

class Steady(Env):
    def reset(self, seed=None):
        import torch
        return torch.zeros(4)
    def step(self, action):
        import torch
        return torch.zeros(4), 1.0, False, False, {}

def make(name):
    return TimeLimit(Steady())
"""


@pytest.mark.slow
def test_an_environment_of_a_library_is_seen_below_its_wrappers(unstuck: Unstuck, tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "gymnasium"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(GYMNASIUM)
    make = "gymnasium.ScaledReward(gymnasium.make('Steady-v1'))"
    Path("train.py").write_text(script("import gymnasium", make=make, episodes=40))
    unstuck("run", "train.py", PYTHONPATH=str(library.parent))
    (event,) = record().of(EpisodesEnded)
    assert isinstance(event, EpisodesEnded)
    assert event.environment == "Steady"
    assert set(event.returns) == {5.0}  # each ended by the next reset


LOOKALIKES = """
class Counter:
    def reset(self):
        self.count = 0
    def step(self):
        self.count += 1
        return self.count

class Patience:
    def reset(self):
        self.best = 9.0
    def step(self, value):
        return value, self.best
"""


@pytest.mark.slow
@pytest.mark.parametrize("make", ["Counter()", "Patience()"])
def test_other_classes_with_these_methods_are_no_environments(unstuck: Unstuck, make: str) -> None:
    loop = f"counter = {make}\ncounter.reset()\nfor _ in range(50):\n    counter.step{'(1)' if 'P' in make else '()'}"
    Path("train.py").write_text(script(ENVIRONMENT + LOOKALIKES, episodes=1, end=loop))
    done = unstuck("run", "train.py")
    assert "episode" not in done.stderr
