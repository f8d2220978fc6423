"""`[tool.unstuck]` of pyproject.toml, and what the command line makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unstuck import cli

Capture = pytest.CaptureFixture[str]


def settings(text: str, folder: str = ".") -> None:
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "pyproject.toml").write_text(f"[tool.unstuck]\n{text}\n", encoding="utf-8")


def codes_of(capsys: Capture, *words: str) -> list[str]:
    """What was found, of the mistakes that these scripts were written for."""
    cli.main(["lint", "--format", "json", *words])
    codes = [diagnosis["code"] for diagnosis in json.loads(capsys.readouterr().out)["diagnoses"]]
    return [code for code in codes if code == "O12"]


@pytest.mark.parametrize(
    ("text", "words", "found"),
    [
        ("", [], True),
        ('select = ["O03"]', [], False),
        ('select = ["O12"]', [], True),
        ('select = ["O"]', [], True),
        ('select = ["O1"]', [], True),
        ('select = ["G"]', [], False),
        ('ignore = ["double-softmax"]', [], False),
        ('ignore = ["O1"]', [], False),
        ('ignore = ["O12"]', ["--select", "O12"], True),
        ('select = ["O12"]', ["--ignore", "O"], None),
        ('select = ["O", "G"]', ["--ignore", "o"], False),
        ('ignore = ["O12"]', ["--isolated"], True),
        ('per-file-ignores = { "train.py" = ["O12"] }', [], False),
        ('per-file-ignores = { "tra*.py" = ["O"] }', [], False),
        ('per-file-ignores = { "tests/" = ["O12"] }', [], True),
    ],
)
def test_which_rules_are_asked(broken: Path, text: str, words: list[str], found: bool | None, capsys: Capture) -> None:
    settings(text)
    if found is None:
        assert cli.main(["lint", "train.py", *words]) == 2
        assert "leave no rule to check" in capsys.readouterr().err
    else:
        assert ("O12" in codes_of(capsys, "train.py", *words)) is found


def test_a_severity_decides_the_exit_code(broken: Path, capsys: Capture) -> None:
    settings('[tool.unstuck.severity]\ndouble-softmax = "warning"')
    assert cli.main(["lint", "train.py"]) == 0
    assert "warning O12 double-softmax" in capsys.readouterr().out
    assert cli.main(["lint", "train.py", "--fail-on", "warning"]) == 1


def test_fail_on_is_the_files_unless_the_command_line_says_otherwise(broken: Path, capsys: Capture) -> None:
    settings('fail-on = "never"')
    assert cli.main(["lint", "train.py"]) == 0
    assert cli.main(["lint", "train.py", "--fail-on", "error"]) == 1


def test_paths_are_linted_when_none_are_named(capsys: Capture, broken: Path) -> None:
    settings('paths = ["src"]')
    Path("src").mkdir()
    broken.rename("src/train.py")
    assert cli.main(["lint"]) == 1
    assert "src/train.py:11:" in capsys.readouterr().out


def test_what_is_excluded_is_linted_only_when_named(broken: Path, fixed: Path, capsys: Capture) -> None:
    settings('exclude = ["train.py", "old/"]')
    Path("old").mkdir()
    Path("old/more.py").write_text(broken.read_text())
    assert cli.main(["lint", ".", "--select", "O12"]) == 0
    assert "Nothing found in 1 file;" in capsys.readouterr().out
    assert cli.main(["lint", "train.py"]) == 1
    fixed.unlink()
    capsys.readouterr()
    assert cli.main(["lint", "."]) == 2
    assert "contains no Python files except those that .gitignore or exclude skips." in capsys.readouterr().err


def test_the_nearest_file_above_the_linted_path_counts(broken: Path, capsys: Capture) -> None:
    settings('ignore = ["O12"]', "inner")
    Path("inner/deep").mkdir()
    Path("inner/deep/train.py").write_text(broken.read_text())
    Path("inner/deep/pyproject.toml").write_text("[tool.other]\nname = 'unstuck'\n")  # no table of ours: passed over
    assert codes_of(capsys, "inner/deep/train.py") == []
    assert codes_of(capsys, "train.py", "inner") == ["O12", "O12"]


def test_patterns_are_relative_to_their_file(broken: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    settings('exclude = ["/sub/train.py"]')
    Path("sub").mkdir()
    broken.rename("sub/train.py")
    Path("sub/good.py").write_text("x = 1\n")
    monkeypatch.chdir("sub")
    assert cli.main(["lint", "."]) == 0


def test_a_file_named_by_config(broken: Path, capsys: Capture) -> None:
    Path("other.toml").write_text('[tool.unstuck]\nignore = ["O12"]\n')
    assert codes_of(capsys, "train.py", "--config", "other.toml") == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('selct = ["O12"]', "pyproject.toml: [tool.unstuck] has no key 'selct'; did you mean 'select'?"),
        (
            "per_file_ignores = {}",
            "pyproject.toml: [tool.unstuck] has no key 'per_file_ignores'; did you mean 'per-file-ignores'?",
        ),
        (
            'select = "O12"',
            'pyproject.toml: [tool.unstuck] select: must be a list of strings such as ["O12", "G"], not a string.',
        ),
        (
            "ignore = [1]",
            'pyproject.toml: [tool.unstuck] ignore: must be a list of strings such as ["O12", "G"], '
            "not a list with a number.",
        ),
        (
            'select = ["double-sofmax"]',
            "pyproject.toml: [tool.unstuck] select: there is no rule 'double-sofmax'; did you mean double-softmax?",
        ),
        (
            'severity = { O12 = "loud" }',
            "pyproject.toml: [tool.unstuck] severity: 'loud' for O12 is not a severity; "
            "use one of error, warning, advice.",
        ),
        ('severity = "error"', "pyproject.toml: [tool.unstuck] severity: must be a table such as"),
        (
            'per-file-ignores = { "a.py" = "O12" }',
            "pyproject.toml: [tool.unstuck] per-file-ignores 'a.py': must be a list of strings such as",
        ),
        ('fail-on = "loud"', "pyproject.toml: [tool.unstuck] fail-on: must be one of error, warning, advice, never"),
        ("select = [", "pyproject.toml is not valid TOML"),
        ('select = ["O12"]\nignore = ["O12"]', "pyproject.toml: select and ignore leave no rule to check"),
    ],
)
def test_a_wrong_setting_is_one_sentence(broken: Path, text: str, sentence: str, capsys: Capture) -> None:
    settings(text)
    assert cli.main(["lint", "train.py"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"unstuck: {sentence}")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--config", "nowhere.toml"], "cannot read nowhere.toml"),
        (["--config", "empty.toml"], "empty.toml has no [tool.unstuck] table"),
        (["--config", "empty.toml", "--isolated"], "--config and --isolated contradict"),
        (["--stdin-filename", "x.py"], "--stdin-filename needs -"),
        (["--statistics", "--format", "sarif"], "--statistics supports only --format text"),
        (["-"], "stdin (-) cannot be combined"),
    ],
)
def test_options_that_cannot_be_followed(broken: Path, words: list[str], sentence: str, capsys: Capture) -> None:
    Path("empty.toml").write_text("")
    assert cli.main(["lint", "train.py", *words]) == 2
    assert capsys.readouterr().err.startswith(f"unstuck: {sentence}")


def test_tool_that_is_no_table(broken: Path, capsys: Capture) -> None:
    Path("pyproject.toml").write_text("[tool]\nunstuck = 3\n")
    assert cli.main(["lint", "train.py"]) == 2
    assert "tool.unstuck must be a table, not a number." in capsys.readouterr().err


@pytest.mark.parametrize("word", ["0", "-1", "two"])
def test_jobs_is_a_positive_number(broken: Path, word: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["lint", "train.py", "--jobs", word])
    assert stopped.value.code == 2
    assert f"{word!r} is not a positive integer" in capsys.readouterr().err
