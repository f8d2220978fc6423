"""The edit of G03 where one clip touches the parameters of two optimizers, applied by `unstuck lint --fix`."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.cli import main

BROKEN = Path(__file__).parent / "cases" / "broken"


@pytest.mark.parametrize("name", ["g03_none_of_two_unscaled", "g03_one_of_two_unscaled"])
def test_every_optimizer_is_unscaled_once(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text((BROKEN / f"{name}.py").read_text())
    main(["lint", "--fix", "--select", "G03", str(script)])
    before_clip = script.read_text().partition("clip_grad_norm_")[0]
    assert before_clip.count("scaler.unscale_(of_body)") == before_clip.count("scaler.unscale_(of_head)") == 1
    assert main(["lint", "--select", "G03", str(script)]) == 0


def test_no_edit_when_an_optimizer_stepped_elsewhere_holds_some_of_the_clipped(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = (BROKEN / "g03_none_of_two_unscaled.py").read_text().replace("    scaler.step(of_head)\n", "")
    script.write_text(text)
    main(["lint", "--fix", "--select", "G03", str(script)])
    assert script.read_text() == text
