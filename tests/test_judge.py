from __future__ import annotations

import hashlib
import math
from pathlib import Path

import pytest
from fakes import FakeScript, finds, make_finding, make_record, make_rule

from unstuck.events import Gauges, LossCall, NonFinite, Note, OptimizerStep, Place, Setup
from unstuck.findings import Evidence, Severity, Subject, Verify, Witness
from unstuck.judge import judge, unite
from unstuck.record.trend import Trend
from unstuck.rule import Rule
from unstuck.source.what_ran import script_of


def source_rule(*findings: object, code: str = "O12", **more: object) -> Rule:
    rule = make_rule(code, **more)
    rule.in_source(finds(*findings))  # type: ignore[arg-type]
    return rule


def run_rule(*findings: object, code: str = "O12", **more: object) -> Rule:
    rule = make_rule(code, **more)
    rule.in_run(finds(*findings))  # type: ignore[arg-type]
    return rule


def test_each_witness_is_shown_what_it_reads() -> None:
    rule, seen = make_rule(), []
    rule.in_source(lambda script: seen.append(script) or ())
    rule.in_setup(lambda setup: seen.append(setup) or ())
    rule.in_run(lambda record: seen.append(record) or ())
    script, setup, record = FakeScript(), Setup(), make_record()
    judge(scripts=[script], setup=setup, record=record, rules=[rule])
    assert seen == [script, setup, record]


def test_a_rule_that_breaks_down_is_noted_and_the_others_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSTUCK_RAISE")
    broken = make_rule("O03")

    @broken.in_source
    def witness(_script: object) -> list[object]:
        return {}["x"]

    verdict = judge(scripts=[FakeScript()], rules=[broken, source_rule(make_finding())])
    assert verdict.failures == ("rule O03 failed on train.py: KeyError: 'x'",)
    assert [d.lead.code for d in verdict.diagnoses] == ["O12"]
    assert verdict.checked == ("O12",)


def test_in_our_own_tests_it_is_raised() -> None:
    broken = make_rule()
    broken.in_run(lambda record: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        judge(record=make_record(), rules=[broken])


@pytest.mark.parametrize("place", [Place("train.py", 5), Place("train.py", 3, 1, 5, 9)])
def test_an_ignored_line_is_left_alone(place: Place) -> None:
    rule = source_rule(make_finding(place=place))
    assert judge(scripts=[FakeScript(ignored_lines=(5,))], rules=[rule]).diagnoses == ()
    assert len(judge(scripts=[FakeScript(ignored_lines=(4,))], rules=[rule]).diagnoses) == 1


def test_ignoring_the_line_in_the_source_also_silences_the_run() -> None:
    rule = source_rule(make_finding())
    rule.in_run(finds(make_finding(witness=Witness.RUN, line=9)))
    verdict = judge(scripts=[FakeScript(ignored_lines=(5,))], record=make_record(), rules=[rule])
    assert verdict.diagnoses == verdict.unconfirmed == ()


def test_a_comment_in_an_imported_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text("x = 1\ny = 2  # unstuck: ignore[O12]\n")
    rule = source_rule(make_finding(path="model.py", line=2), make_finding(path="model.py", line=1))
    (kept,) = judge(scripts=[FakeScript()], rules=[rule]).diagnoses
    assert kept.lead.place == Place("model.py", 1)


def test_with_a_record_the_text_alone_confirms_nothing() -> None:
    rule = source_rule(make_finding(line=5), make_finding(line=20, subject="other"))
    rule.in_run(finds(make_finding(witness=Witness.RUN, line=9)))
    verdict = judge(scripts=[FakeScript()], record=make_record(), rules=[rule])
    assert [d.witnesses for d in verdict.diagnoses] == [(Witness.SOURCE, Witness.RUN)]
    assert [d.lead.place for d in verdict.unconfirmed] == [Place("train.py", 20)]


def test_paths_are_spelled_alike_so_that_witnesses_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule = source_rule(make_finding(path=f"{tmp_path}/train.py", subject="a"))
    there = (Evidence("calls", 1, place=Place(f"{tmp_path}/train.py", 9)),)
    rule.in_run(finds(make_finding(witness=Witness.RUN, path="./train.py", subject="b", evidence=there)))
    (diagnosis,) = judge(scripts=[FakeScript()], record=make_record(), rules=[rule]).diagnoses
    assert diagnosis.lead.place == Place("train.py", 5)
    assert diagnosis.evidence[0].place == Place("train.py", 9)


def test_the_command_that_verifies_a_fix() -> None:
    rules = [source_rule(make_finding(path="my train.py"))]
    (linted,) = judge(scripts=[FakeScript("my train.py")], rules=rules).diagnoses
    assert linted.lead.verify == Verify("unstuck lint 'my train.py'", "no O12 double-softmax")
    record = make_record(arguments=("--name", "a b"))
    (ran,) = judge(record=record, rules=[run_rule(make_finding(witness=Witness.RUN))]).diagnoses
    assert ran.lead.verify == Verify("unstuck run train.py --name 'a b'", "no O12 double-softmax")


def test_what_lies_in_another_file_is_verified_with_the_script_that_led_there() -> None:
    rule = source_rule(make_finding(path="model.py"))
    (diagnosis,) = judge(scripts=[FakeScript("train.py")], rules=[rule]).diagnoses
    assert diagnosis.lead.verify == Verify("unstuck lint train.py", "no O12 double-softmax")


def test_two_statements_about_one_place_survive() -> None:
    names = ["log", "division", "self.division"]
    rule, place = make_rule(), Place("train.py", 5)
    findings = [
        rule.finding(f"{name} of 0.", cause="c", fix="f", subject=Subject("call", name), place=place) for name in names
    ]
    verdicts = [judge(scripts=[FakeScript()], rules=[source_rule(finding)]) for finding in findings]
    together = judge(scripts=[FakeScript()], rules=[source_rule(*findings)])
    for verdict in (unite(verdicts), together):
        assert len({d.lead.message.replace("self.", "") for d in verdict.diagnoses}) == len(verdict.diagnoses) == 2


def test_a_rule_may_say_itself_how_to_verify() -> None:
    own = Verify("unstuck overfit train.py", "a loss of 0")
    (diagnosis,) = judge(scripts=[FakeScript()], rules=[source_rule(make_finding(verify=own))]).diagnoses
    assert diagnosis.lead.verify == own


def test_causes_come_first_and_say_what_they_explain() -> None:
    symptom = run_rule(make_finding("G10", witness=Witness.RUN, line=1), code="G10")
    cause = run_rule(make_finding("O03", witness=Witness.RUN, line=9), code="O03", explains=("G10",))
    verdict = judge(record=make_record(), rules=[symptom, cause])
    assert [(d.lead.code, d.explains) for d in verdict.diagnoses] == [("O03", ("G10",)), ("G10", ())]


def test_what_the_run_did_not_confirm_is_no_symptom() -> None:
    cause = run_rule(make_finding("O03", witness=Witness.RUN, line=9), code="O03", explains=("O12",))
    silent = source_rule(make_finding())
    silent.in_run(lambda record: ())
    verdict = judge(scripts=[FakeScript()], record=make_record(), rules=[cause, silent])
    assert verdict.diagnoses[0].explains == ()
    assert len(verdict.unconfirmed) == 1


def test_what_no_run_can_show_stands_beside_the_run() -> None:
    verdict = judge(scripts=[FakeScript()], record=make_record(), rules=[source_rule(make_finding())])
    assert len(verdict.diagnoses) == 1
    assert verdict.unconfirmed == ()


def test_lint_says_which_rules_need_more_than_text() -> None:
    verdict = judge(scripts=[FakeScript()], rules=[source_rule(), run_rule(code="G10"), run_rule(code="G01")])
    assert verdict.checked == ("O12",)
    assert verdict.not_checked == ("G10, G01: only a run shows it",)


def test_a_run_without_what_a_rule_needs_did_not_check_it() -> None:
    loss = run_rule(needs=(LossCall,))
    step = run_rule(code="O03", needs=(OptimizerStep,))
    verdict = judge(record=make_record(OptimizerStep()), rules=[loss, step])
    assert verdict.checked == ("O03",)
    assert verdict.not_checked == ("O12: no loss function of torch was called",)


def test_a_run_that_trained_nothing_checked_nothing() -> None:
    verdict = judge(record=make_record(), rules=[run_rule(), run_rule(code="O03")])
    assert verdict.checked == ()
    assert verdict.not_checked == ("O12, O03: the run called no model, no loss and no optimizer",)


def test_a_rule_that_found_something_was_checked_whatever_it_needs() -> None:
    rule = run_rule(make_finding(witness=Witness.RUN), needs=(OptimizerStep,))
    assert judge(record=make_record(), rules=[rule]).checked == ("O12",)


def test_what_the_capture_could_not_watch_is_passed_on_once() -> None:
    note = Note(text="the compiled model: its modules cannot be watched")
    verdict = judge(record=make_record(note, note, ended=False), rules=[])
    assert verdict.gaps[0] == note.text
    assert verdict.gaps[1].startswith("what came after the last event")


def test_the_trend_comes_from_the_losses() -> None:
    trend = judge(record=make_record(losses=(2.3,) * 50), rules=[]).trend
    assert trend == Trend("flat", 50, 2.3, 2.3, change=0.0, error=0.0, noise=0.0)


def test_a_loss_that_went_nan_ends_non_finite_unless_it_recovered() -> None:
    gone = make_record(Gauges(step=50), NonFinite(what="loss", step=50), losses=(2.3,) * 50)
    recovered = make_record(NonFinite(what="loss", step=3), losses=(2.3,) * 50)
    words = [verdict.trend and verdict.trend.word for verdict in (judge(record=r, rules=[]) for r in (gone, recovered))]
    assert words == ["non-finite", "flat"]


def test_the_script_of_a_run_is_read_only_if_it_is_still_what_ran(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    record = make_record(script=str(path), source_hash=digest)
    script = script_of(record)
    assert script is not None
    assert script.path == str(path)
    path.write_text("x = 2\n")
    assert script_of(record) is None
    path.unlink()
    assert script_of(record) is None


@pytest.mark.parametrize("file", ["pkg/train.py", "pkg/train/__main__.py"])
def test_the_text_of_a_module_is_found_too(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(file)
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    script = script_of(make_record(script="pkg.train", source_hash=digest))
    assert script is not None
    assert script.path == file


def test_counting_and_reaching() -> None:
    rule = source_rule(make_finding(severity=Severity.WARNING))
    verdict = judge(scripts=[FakeScript()], rules=[rule])
    assert [verdict.count(severity) for severity in Severity] == [0, 1, 0]
    assert [verdict.reaches(severity) for severity in Severity] == [False, True, True]


def test_verdicts_on_several_scripts_become_one() -> None:
    shared = make_finding(path="model.py")
    one = judge(scripts=[FakeScript("a.py")], rules=[source_rule(shared, make_finding(path="a.py"))])
    two = judge(scripts=[FakeScript("b.py")], rules=[source_rule(shared, make_finding(path="b.py"))])
    both = unite([one, two])
    assert [d.lead.place.path for d in both.diagnoses if d.lead.place] == ["a.py", "model.py", "b.py"]
    assert both.checked == ("O12",)
    assert unite([]).diagnoses == ()


def test_numbers_that_are_no_numbers_do_not_disturb() -> None:
    rule = run_rule(make_finding(witness=Witness.RUN, evidence=(Evidence("loss", math.nan),)))
    assert len(judge(record=make_record(), rules=[rule]).diagnoses) == 1


def test_check_says_which_rules_look_elsewhere_and_what_was_not_given() -> None:
    rule = make_rule(needs=(LossCall,))
    rule.in_setup(finds())
    elsewhere = source_rule(code="O03")
    elsewhere.in_run(finds())
    verdict = judge(setup=Setup(), rules=[rule, elsewhere])
    assert verdict.checked == ()
    assert verdict.not_checked == (
        "O12: no batch and loss were given to try",
        "O03: only lint or a run shows it",
    )
    assert judge(setup=Setup(losses=(LossCall(),)), rules=[rule]).checked == ("O12",)
