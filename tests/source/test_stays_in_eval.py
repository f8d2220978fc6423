"""A model of which only the name is known is trained in eval mode, unless the loop gives a reason to doubt it (O05)."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.judge import judge
from unstuck.source import read_script

TRAINED = """
        for x, y in cfg.loader:
            optimizer.zero_grad()
            cfg.loss_fn(model(x), y).backward()
            optimizer.step()
"""
EVALUATED = """
        model.eval()
        with torch.no_grad():
            for x, y in cfg.val:
                model(x)
"""
MADE = """
    model = create_model(cfg)
    optimizer = torch.optim.Adam(model.parameters())
"""
HEAD = "import copy\n\nimport torch\nfrom lib import begin, create_model, enough, save_model\n\n\n"
MAIN = HEAD + "def main(cfg):\n"
LOOP = "    for epoch in range(5):"
FUNCTIONS = (
    HEAD
    + "def fit(model, optimizer, cfg):\n"
    + TRAINED.replace("\n    ", "\n")
    + "\n\ndef judged(cfg, model):\n"
    + EVALUATED.replace("\n    ", "\n")
    + "\n\ndef main(cfg):\n    net = create_model(cfg)\n    optimizer = torch.optim.Adam(net.parameters())\n"
    + "    for fold in range(5):\n        {}\n        fit(net, optimizer, cfg)\n        judged(cfg, net)\n"
    + "\n\ndef parameters_of(model):\n    return model.parameters()\n"
)


def deeper(text: str) -> str:
    return text.replace("\n    ", "\n        ")


FOUND = {
    "inline": MADE + LOOP + TRAINED + EVALUATED,
    "evaluated first": MADE + LOOP + EVALUATED + TRAINED,
    "saved": MADE + LOOP + TRAINED + EVALUATED + "        save_model(model)\n",
    "leaves another loop": MADE
    + LOOP
    + TRAINED
    + "        for _ in cfg.once:"
    + deeper(EVALUATED)
    + "            break\n",
    "a sweep of epochs": "\n    for lr in cfg.rates:"
    + deeper(MADE)
    + "    "
    + LOOP
    + deeper(TRAINED)
    + deeper(EVALUATED),
}
SILENT = {
    "made in each fold": LOOP + deeper(MADE) + TRAINED + EVALUATED,
    "made by others in each fold": LOOP + "\n        model, optimizer = cfg.make()\n" + TRAINED + EVALUATED
    + "    model.parameters()\n",
    "made for each rate": "\n    for lr in cfg.rates:" + deeper(MADE) + "    " + LOOP + deeper(TRAINED) + EVALUATED,
    "one of several": MADE + "    for model in cfg.models:" + TRAINED + EVALUATED,
    "left by break": MADE + LOOP + TRAINED + "        if enough(y):" + deeper(EVALUATED) + "            break\n",
    "left by return": MADE + LOOP + TRAINED + "        if enough(y):" + deeper(EVALUATED)
    + "            return model\n",
    "a copy": MADE + LOOP + TRAINED + "        kept, model = model, copy.deepcopy(model)\n" + EVALUATED
    + "        model = kept\n",
    "given away before": MADE + LOOP + "\n        begin(model)\n" + TRAINED + EVALUATED,
    "given away after": MADE + LOOP + TRAINED + EVALUATED + "        cfg.toggle(model, True)\n",
    "on purpose": MADE + LOOP + "\n        model.eval()\n" + TRAINED,
}  # fmt: skip


def codes(folder: Path, text: str) -> list[str]:
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    return [diagnosis.lead.code for diagnosis in judge(scripts=(read_script(script),)).diagnoses]


@pytest.mark.parametrize("body", FOUND.values(), ids=FOUND)
def test_eval_that_lasts_is_found(tmp_path: Path, body: str) -> None:
    assert "O05" in codes(tmp_path, MAIN + body)


@pytest.mark.parametrize("body", SILENT.values(), ids=SILENT)
def test_nothing_is_said_where_it_may_not_last(tmp_path: Path, body: str) -> None:
    assert "O05" not in codes(tmp_path, MAIN + body)


def test_a_model_made_where_the_functions_are_called(tmp_path: Path) -> None:
    assert "O05" in codes(tmp_path, FUNCTIONS.format("pass"))
    assert "O05" not in codes(tmp_path, FUNCTIONS.format("net = create_model(fold)"))
    assert "O05" not in codes(tmp_path, FUNCTIONS.format("optimizer = torch.optim.Adam(create_model(0).parameters())"))
