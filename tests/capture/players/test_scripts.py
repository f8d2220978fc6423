"""Scripts of several styles that train agents, opponents, codes and partners: nothing is found as they are, and each
mistake by its rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unstuck.testing.runs import OUTPUT, RunServer

SCRIPTS = Path(__file__).parent / "scripts"
REPORT = "report.json"
FOUND_BY = ("P12", "P14", "P15", "P16", "P17", "P18")
QUICK = ("reinforce_batch", "gan_ring", "simclr", "triplet", "vae")

MISTAKES = [
    ("reinforce_scalar", "loss = -(torch.stack", "loss = (torch.stack", "P15/against-returns"),
    ("reinforce_scalar", "returns.insert(0, g)", "returns.append(g)", "P16/against-time"),
    ("reinforce_scalar", "dist.log_prob(a))", "dist.log_prob(dist.sample()))", "P15/other-action"),
    ("reinforce_batch", "loss = -(logp * G)", "loss = (logp * G)", "P15/against-returns"),
    ("reinforce_batch", "in reversed(range(len(rewards)))", "in range(len(rewards))", "P16/against-time"),
    ("actor_critic", "returns - values.detach()", "values.detach() - returns", "P15/against-values"),
    ("actor_critic", "torch.tensor(returns[::-1])", "torch.tensor(returns)", "P16/against-time"),
    ("actor_critic", "- 0.01 * torch.cat(entropies)", "+ 0.01 * torch.cat(entropies)", "P15/entropy-penalized"),
    ("td_actor_critic", " * (1 - int(done))", "", "P16/past-the-end"),
    ("td_actor_critic", "actor_loss = -logp", "actor_loss = logp", "P15/against-values"),
    ("ppo", "torch.max(-ad * ratio, -ad * torch", "torch.min(ad * ratio, ad * torch", "P15/against-values"),
    ("dqn", " * (1 - dones)", "", "P16/past-the-end"),
    ("dqn", "(1 - dones)", "dones", "P16/only-at-the-end"),
    ("dqn", "if step % 200 == 0:", "if step % 200 == 201:", "P17/never-changes"),
    ("dqn", "q(states).gather(1, actions).squeeze(1)", "q(states).max(1)[0]", "P16/best-action"),
    ("ddqn_grid", " = s, a, r, s2, d", " = s, a, r, s, d", "P16/same-state"),
    (
        "ddqn_grid",
        "o = np.zeros(self.n, dtype=np.float32)",
        "o = vars(self).setdefault('o', np.zeros(self.n, dtype=np.float32)); o[:] = 0",
        "P16/same-array",
    ),
    ("ddqn_grid", "0.95 * (1 - D)", "1.05 * (1 - D)", "P16/growing"),
    ("gan_ring", "bce(g_out, torch.ones_like", "bce(g_out, torch.zeros_like", "P14/same-side"),
    ("dcgan_tiny", "label.fill_(1.0)", "label.fill_(0.0)", "P14/same-side"),
    ("wgan_gp", "loss_g = -critic", "loss_g = critic", "P14/same-side"),
    ("wgan_gp", "- critic(real).mean()", "+ critic(real).mean()", "P14/same-labels"),
    ("vae", "torch.exp(0.5 * logvar)", "torch.exp(logvar)", "P18/wrong-spread"),
    ("vae", "kld = -0.5", "kld = 0.5", "P18/rewarded"),
    ("vae", "return mu + eps * std", "return eps * std", "P18/not-used"),
    ("simclr", "/ temperature", "* temperature", "P12/too-narrow"),
    ("simclr", "torch.cat([torch.arange(n) + n, torch.arange(n)])", "torch.arange(2 * n).roll(1)", "P12/elsewhere"),
    ("simclr", "head(encoder(augment(x))), head(encoder(augment(x)))", "(head(encoder(x)),) * 2", "P12/itself"),
    ("triplet", "p = same[torch.randint(len(same), (1,))].item()", "p = i", "P12/itself"),
    ("triplet", "model(p), model(n)", "model(n), model(p)", "P12/not-apart"),
]


@pytest.fixture(scope="module")
def run_server() -> Iterator[RunServer]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")
        process = RunServer()
    yield process
    process.close()


def found(text: str, folder: Path, run_server: RunServer) -> list[str]:
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    arguments = ["run", "--format", "json", "--output", REPORT, "--fail-on", "never", str(script)]
    assert run_server.run(str(folder), arguments) == 0, (folder / OUTPUT).read_text(encoding="utf-8")
    report: dict[str, Any] = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    return [f"{item['code']}/{item['variant']}" for item in report["diagnoses"]]


def marked(name: str, *values: str) -> Any:
    return pytest.param(name, *values, marks=() if name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("name", [marked(script.stem) for script in sorted(SCRIPTS.glob("*.py"))])
def test_nothing_is_found_in_a_right_script(name: str, tmp_path: Path, run_server: RunServer) -> None:
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    assert [one for one in found(text, tmp_path, run_server) if one.startswith(FOUND_BY)] == []


@pytest.mark.parametrize(("name", "right", "wrong", "finding"), [marked(*each) for each in MISTAKES])
def test_each_mistake_is_found(
    name: str, right: str, wrong: str, finding: str, tmp_path: Path, run_server: RunServer
) -> None:
    text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    assert right in text
    before, _, after = text.rpartition(right) if name == "dcgan_tiny" else text.partition(right)
    assert finding in found(before + wrong + after, tmp_path, run_server)
