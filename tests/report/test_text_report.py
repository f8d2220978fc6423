"""The text report, word for word."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes import SCRIPT, detailed_finding, make_finding

from unstuck.events import Crash, Place
from unstuck.findings import Confidence, Diagnosis, Evidence, Finding, Severity, Witness, merge
from unstuck.findings.result import Problem, Result, RunSummary
from unstuck.findings.verdict import Verdict
from unstuck.record.trend import Trend
from unstuck.report import terminal, text
from unstuck.report.outcomes import trend_sentence


@pytest.fixture(autouse=True)
def script_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def rendered(result: Result, width: int = 80) -> str:
    return terminal.plain(text.render(result, width))


def lint_result(*findings: Finding, files: int = 1, **more: Any) -> Result:
    diagnoses = tuple(Diagnosis(lead=finding, findings=(finding,)) for finding in findings)
    verdict = Verdict(diagnoses=diagnoses, checked=("O03", "O12"), not_checked=("G10: only a run shows it",))
    return Result(command="lint", verdict=verdict, files=files, **more)


def run_result(**more: Any) -> Result:
    run = detailed_finding()
    source = make_finding(place=run.place)
    diagnosis = Diagnosis(lead=run, findings=(source, run), explains=("O04",))
    summary = RunSummary(
        script="train.py",
        arguments=("--epochs", "3"),
        status="finished",
        exit_code=0,
        steps=640,
        seconds=12.34,
        record=".unstuck/runs/20260101-120000-train",
    )
    verdict = Verdict(
        diagnoses=(diagnosis,),
        unconfirmed=(diagnosis,),
        trend=Trend("flat", 640, 2.3031, 2.3012),
        checked=("O02", "O12"),
        not_checked=("G01: no gradient was clipped",),
    )
    fields: dict[str, Any] = {"verdict": verdict, "run": summary, **more}
    return Result(command="run", **fields)


RUN_AT_80 = """
─── unstuck ────────────────────────────────────────────────────────────────────
Likely cause: O12 double-softmax at train.py:5 (1 error).
The loss is flat: 2.303 → 2.301 over 640 steps.
train.py --epochs 3 finished after 640 optimizer steps and 12.3 s.

error O12 double-softmax: cross_entropy got probabilities in all 640 calls:
every row of its input sums to 1.
 --> train.py:5:16 in Net.forward
  |
5 |         return torch.softmax(self.head(x), dim=1)
  |                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
...
9 |         loss = criterion(model(x), y)
  |                ----------------------
  |
  gradient kept  0.1934 of the right one  (threshold 0.5)
  lowest loss    1.461
  layers         layer0, layer1, layer2, layer3, layer4, layer5 and 3 more
  calls          12,640

  why       cross_entropy applies log-softmax itself, so a softmax before it
            leaves a fifth of the gradient.
  change    Return self.head(x) and leave the softmax to the loss.
  then      unstuck run train.py --epochs 3  should show no O12 double-softmax
  also      seen in the source: The loss gets probabilities, not logits.
  more      unstuck explain O12

lint sees 1 more that the run did not show: unstuck lint train.py
2 rules checked; `--checked` lists them.
Record       .unstuck/runs/20260101-120000-train
"""

HEAD_AT_200 = """
─── unstuck ────────────────────────────────────────────────────────────────────────────────────────
Likely cause: O12 double-softmax at train.py:5 (1 error).
The loss is flat: 2.303 → 2.301 over 640 steps.
train.py --epochs 3 finished after 640 optimizer steps and 12.3 s.

error O12 double-softmax: cross_entropy got probabilities in all 640 calls: every row of its input
sums to 1.
 --> train.py:5:16 in Net.forward
"""

TAIL_AT_200 = """
  why       cross_entropy applies log-softmax itself, so a softmax before it leaves a fifth of the
            gradient.
"""


def test_a_run_at_80_columns() -> None:
    assert rendered(run_result(), 80) == RUN_AT_80


def test_a_run_at_200_columns_keeps_sentences_readable() -> None:
    shown = rendered(run_result(), 200)
    assert shown.startswith(HEAD_AT_200)
    assert TAIL_AT_200 in shown


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = make_finding(place=Place("long.py", 1, 200, 1, 220), message="word " * 60, cause="why " * 90)
    Path("long.py").write_text("x = " + "a + " * 200 + "b\n")
    assert max(map(len, rendered(lint_result(long), width).splitlines())) <= width


LINT = """\
error O12 double-softmax: The loss gets probabilities, not logits.
 --> train.py:5
  |
5 |         return torch.softmax(self.head(x), dim=1)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  why       The loss applies log-softmax itself.
  change    Remove the softmax.
  more      unstuck explain O12

warning (likely) O03 loss-detached: The loss gets probabilities, not logits.
 --> train.py:9
  |
9 |         loss = criterion(model(x), y)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  why       The loss applies log-softmax itself.
  change    Remove the softmax.
  more      unstuck explain O03

Found 1 error and 1 warning in 1 file.
2 rules checked; `--checked` lists them.
Not checked  G10: only a run shows it
"""


def test_lint_of_one_script() -> None:
    quiet = make_finding("O03", line=9, severity=Severity.WARNING, confidence=Confidence.LIKELY)
    assert rendered(lint_result(make_finding(), quiet)) == LINT


def test_many_scripts_have_no_single_cause() -> None:
    assert "Likely cause" not in rendered(lint_result(make_finding(), files=1))


def test_advice_is_no_cause() -> None:
    shown = rendered(lint_result(make_finding(severity=Severity.ADVICE)))
    assert shown.startswith("advice O12")
    assert "Found 1 advice in 1 file." in shown


def test_nothing_found_is_said_plainly_without_a_list_of_what_was_checked() -> None:
    assert rendered(lint_result(files=3)) == (
        "Nothing found in 3 files; 2 rules checked.\nNot checked  G10: only a run shows it\n"
    )


def test_a_healthy_run_begins_with_one_line_and_a_count() -> None:
    shown = rendered(run_result(verdict=Verdict(checked=("O03", "O12")))).splitlines()
    assert shown[2] == "Nothing found in 640 steps; 2 rules checked."
    assert not any("O03" in line for line in shown)


def test_a_run_without_a_step_was_not_judged() -> None:
    summary = RunSummary(script="train.py", status="finished", steps=0, seconds=0.1)
    shown = rendered(run_result(verdict=Verdict(checked=("O12",)), run=summary)).splitlines()
    assert shown[2] == "No optimizer stepped, so no training was judged; 1 rule checked."


def test_the_first_line_fits_into_100_columns_whatever_the_path() -> None:
    far = make_finding(place=Place("a/" * 60 + "train.py", 5))
    shown = rendered(run_result(verdict=Verdict(diagnoses=tuple(merge([far])), checked=("O12",))))
    assert shown.splitlines()[2] == "Likely cause: O12 double-softmax (1 error)."


def test_a_symptom_is_one_line_under_its_cause() -> None:
    cause = Diagnosis(lead=make_finding(), findings=(make_finding(),), explains=("G10",))
    symptom = make_finding("G10", line=9, severity=Severity.WARNING)
    other = make_finding("O03", line=9, severity=Severity.WARNING)
    diagnoses = (cause, *merge([symptom]), *merge([other]))
    shown = rendered(run_result(verdict=Verdict(diagnoses=diagnoses, checked=("O12",))))
    assert "\n  more      unstuck explain O12\n  leads to  G10 non-finite (warning) at train.py:9\n\n" in shown
    assert shown.count("G10") == 1
    assert shown.index("Also found") < shown.index("O03")


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("flat", "No cause found: the loss is flat; 2 rules checked."),
        ("falling", "Nothing found in 640 steps; 2 rules checked."),
    ],
)
def test_a_stuck_run_without_a_cause_is_not_called_healthy(word: str, sentence: str) -> None:
    verdict = Verdict(trend=Trend(word, 100, 1.0, 1.0), checked=("O03", "O12"))
    assert sentence in rendered(run_result(verdict=verdict))


def test_a_crash_that_no_rule_explains() -> None:
    crash = Crash(kind="RuntimeError", message="boom", place=Place("train.py", 9))
    summary = RunSummary(script="train.py", status="crashed", steps=0, seconds=0.1, crash=crash)
    shown = rendered(run_result(verdict=Verdict(checked=("O12",)), run=summary))
    assert "train.py crashed after 0 optimizer steps and 0.1 s." in shown
    assert "No rule explains the RuntimeError at train.py:9." in shown


@pytest.mark.parametrize(
    ("trend", "sentence"),
    [
        (
            Trend("too short", 3, 2.0, 1.0),
            "The loss went 2 → 1 over 3 steps: too short to tell a direction.",
        ),
        (
            Trend("non-finite", 30, 2.0, None),
            "The loss ended non-finite (it began at 2), 30 steps on record.",
        ),
        (Trend("rising", 12, 0.001234567, 123456.0), "The loss is rising: 0.001235 → 1.235e+05 over 12 steps."),
        (Trend("too short", 1, 2.0, 2.0), "One loss was seen: 2."),
        (
            Trend("crawling", 100, 2.3, 2.2, runs_to_go=22.0),
            "The loss is crawling: 2.3 → 2.2 over 100 steps; at this rate it needs about 22 times more steps to "
            "reach 0.",
        ),
    ],
)
def test_the_sentence_about_the_loss(trend: Trend, sentence: str) -> None:
    assert trend_sentence(trend) == sentence


def test_problems_are_told_with_their_place() -> None:
    problems = (
        Problem("invalid syntax", Place("bad.py", 3)),
        Problem("blob.py is not text.", Place("blob.py", 1)),
    )
    shown = rendered(lint_result(problems=problems))
    assert shown.startswith("bad.py:3: invalid syntax\nblob.py is not text.\nNothing found")


def test_lines_of_a_changed_script_are_not_quoted() -> None:
    shown = rendered(run_result(changed=frozenset({"train.py"})))
    assert " --> train.py:5:16 in Net.forward" in shown
    assert "torch.softmax" not in shown
    assert "train.py is no longer what ran, so its lines are not shown.\n" in shown


def test_lines_of_another_file_come_last_under_its_name() -> None:
    Path("model.py").write_text("one\ntwo\n")
    shown = rendered(lint_result(make_finding(line=9, related=(Place("model.py", 2, 1, 2, 4), Place("train.py", 8)))))
    assert (
        """\
 --> train.py:9
  |
8 |     for x, y in loader:
  |     -------------------
9 |         loss = criterion(model(x), y)
  |         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
 ::: model.py:2:1
  |
2 | two
  | ---
  |
"""
        in shown
    )


def test_wide_letters_and_tabs_keep_the_mark_below_its_word() -> None:
    Path("wide.py").write_text("\tprint('学習', loss.item())\n", encoding="utf-8")
    shown = rendered(lint_result(make_finding(place=Place("wide.py", 1, 14, 1, 25))))
    assert "1 |     print('学習', loss.item())\n  |                   ^^^^^^^^^^^\n" in shown


def test_a_statement_over_several_lines_is_marked_whole() -> None:
    Path("long.py").write_text("loss = f(\n    a,\n)\n")
    shown = rendered(lint_result(make_finding(place=Place("long.py", 1, 8, 3, 2))))
    assert "1 | loss = f(\n  |        ^^\n2 |     a,\n  |     ^^\n3 | )\n  | ^\n" in shown


def test_a_place_beyond_the_file_is_named_but_not_quoted() -> None:
    assert " --> train.py:999\n  why" in rendered(lint_result(make_finding(line=999)))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "yes"), (False, "no"), (12640, "12,640"), (0.123456, "0.1235"), (1e-9, "1e-09"), ("SGD", "SGD")],
)
def test_evidence_is_written_for_people(value: Any, shown: str) -> None:
    assert f"  what  {shown}\n" in rendered(lint_result(make_finding(evidence=(Evidence("what", value),))))


def test_a_terminal_without_unicode_gets_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    terminal.show(text.render(run_result(), 80), stream)
    stream.flush()
    shown = raw.getvalue().decode("ascii")
    assert "--- unstuck ---" in shown
    assert "2.303 -> 2.301" in shown


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colour_and_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    terminal.show(text.render(run_result(), 80), stream)
    shown = stream.getvalue()
    assert "\x1b[" in shown
    from rich.text import Text

    assert Text.from_ansi(shown).plain.rstrip() == RUN_AT_80.rstrip()


def test_nothing_in_a_line_commands_the_terminal_or_fills_it() -> None:
    line = [("name ", ""), ("a\x1b[2J\r\x9b\u202eb", "strong"), (" " + "n" * 100_000, "")]
    for shown in (terminal.plain([line]), terminal.coloured([line])):
        assert "a\\x1b[2J\\x0d\\x9b\\u202eb" in shown
        assert shown.rstrip().endswith("n… (100,000 characters)")
        assert len(shown) < 1000


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_it_is_not_wanted(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    stream = Terminal()
    terminal.show(text.render(run_result(), 80), stream)
    assert stream.getvalue() == RUN_AT_80


def test_the_witnesses_are_named_where_there_are_several() -> None:
    source = make_finding()
    setup = msgspec.structs.replace(source, witness=Witness.SETUP)
    diagnosis = Diagnosis(lead=source, findings=(source, setup))
    shown = rendered(Result(command="lint", verdict=Verdict(diagnoses=(diagnosis,))))
    assert "  also      seen in the live objects\n" in shown


def test_the_rules_that_were_checked_are_listed_where_one_asks() -> None:
    verdict = Verdict(
        checked=("O03", "O12"), not_checked=("G01: no gradient was clipped",), gaps=("2 lines are damaged",)
    )
    assert terminal.plain(text.checked_lines(verdict)) == (
        "Checked      O03, O12\nNot checked  G01: no gradient was clipped\nNot checked  2 lines are damaged\n"
    )
