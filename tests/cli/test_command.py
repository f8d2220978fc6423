"""The command itself: help, version, unknown words, and what happens when something breaks."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from unstuck import __version__, cli
from unstuck.cli import common, verbs


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"unstuck {__version__}\n"


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb}" in shown for verb in cli.commands())


def test_every_file_of_a_verb_states_its_help_and_group() -> None:
    files = {info.name for info in pkgutil.iter_modules(verbs.__path__)}
    modules = {name: importlib.import_module(f"unstuck.cli.verbs.{name}") for name in files}
    stated = {name: (module.GROUP, module.HELP) for name, module in modules.items()}
    assert {name: what for name, what in cli.commands().items() if name in files} == stated
    assert {group for group, _ in cli.commands().values()} == set(cli.GROUPS)


@pytest.mark.parametrize("verb", cli.commands())
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb, "--help"])
    assert stopped.value.code == 0
    assert f"usage: unstuck {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "slow"),
    [
        (["--version"], "argparse contextlib importlib pathlib re typing msgspec"),
        (["--help"], "torch numpy rich unstuck.rule unstuck.judge"),
        (["explain", "O12"], "pathlib typing inspect msgspec unstuck.rule"),
    ],
)
def test_a_quick_command_does_not_load_what_it_does_not_need(words: list[str], slow: str) -> None:
    # bench/start.py measures it: some of these take as long to load as Python takes to start.
    program = f"import sys; from unstuck.__main__ import main; sys.argv[1:] = {words}; main()\n"
    program += f"sys.stderr.write(' '.join(set({slow.split()}) & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path}\n{program}"], capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_no_command_shows_the_help_and_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "find the cause:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("lnit", "unstuck: there is no command 'lnit'; did you mean 'lint'?\n"),
        ("train.py", "to run a script under watch: unstuck run train.py"),
        ("xyz", f"there is no command 'xyz'; the commands are {', '.join(cli.commands())}."),
        ("common", "there is no command 'common'"),
        ("__init__", "there is no command '__init__'"),
        ("--versoin", "unstuck: there is no option '--versoin'; `unstuck --help` lists the options and commands.\n"),
    ],
)
def test_an_unknown_command_gets_a_hint(word: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word]) == 2
    assert sentence in capsys.readouterr().err


def test_an_unknown_option_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["lint", "--nope", "x.py"])
    assert stopped.value.code == 2


def test_a_bug_of_ours_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("UNSTUCK_RAISE")
    monkeypatch.setattr("unstuck.cli.verbs.rules.all_rules", lambda: 1 / 0)
    assert cli.main(["rules"]) == 70
    shown = capsys.readouterr().err
    assert shown.startswith(f"unstuck: this is a bug in unstuck {__version__} (ZeroDivisionError: division by zero)")
    assert "UNSTUCK_RAISE=1" in shown
    assert shown.count("\n") == 1


def test_a_bug_of_ours_is_raised_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstuck.cli.verbs.rules.all_rules", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(["rules"])


def test_ctrl_c_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unstuck.cli.verbs.rules.all_rules", interrupted)
    assert cli.main(["rules"]) == 130
    assert capsys.readouterr().err == "unstuck: interrupted\n"


def test_a_reader_that_has_seen_enough_causes_no_noise() -> None:
    command = [sys.executable, "-m", "unstuck", "explain", "O12"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        shown = process.stderr.read()
    assert shown == b""
    assert process.returncode == 141


def test_the_console_script_is_the_same_command() -> None:
    from unstuck.__main__ import main

    assert main is cli.main


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.json"
    file.write_text("before")
    with monkeypatch.context() as full:
        full.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
        with pytest.raises(common.Stop):
            common.write_whole(file, "half")
    assert file.read_text() == "before"
    common.write_whole(file, "half a character: \udc80")
    assert file.read_text() == "half a character: ?"
    common.write_whole(file, "after")
    assert file.read_text() == "after"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("before")
    link.symlink_to(real)
    common.write_whole(link, "after")
    assert link.is_symlink()
    assert real.read_text() == "after"


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (".", "cannot write .: it is a directory; name a file."),
        ("nowhere/report.json", "cannot write nowhere/report.json: its directory does not exist."),
    ],
)
def test_an_impossible_output_is_refused_before_the_work(
    output: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["lint", "--output", output, "x.py"],
        ["run", "--output", output, "x.py"],
        ["report", "--output", output],
    ):
        assert cli.main(words) == 2
        assert capsys.readouterr().err == f"unstuck: {sentence}\n"


@pytest.mark.parametrize("verb", ["lint", "run", "report"])
def test_a_name_cannot_command_the_terminal(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([verb, "no\x1b]0;title\x07\x9b2J.py"]) == 2
    shown = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b"} & set(shown.out + shown.err)
    assert shown.err.startswith("unstuck: ")


def test_a_directory_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.main(["lint", "."]) == 2
    assert capsys.readouterr().err == "unstuck: the current directory is gone; change to one that exists.\n"


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("O04/nope", "unstuck: O04 has no variant 'nope'; its variants are "),
        ("O12/x", "unstuck: O12 has no variant 'x'; it has none.\n"),
        ("O04/never-cleard", "unstuck: there is no rule 'O04/never-cleard'; did you mean O04/never-cleared?\n"),
    ],
)
def test_an_unknown_variant_gets_a_hint(word: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", word]) == 2
    assert capsys.readouterr().err.startswith(sentence)
