from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from fakes import make_finding
from hypothesis import given, strategies as st

from unstuck.events import Place
from unstuck.findings import (
    Confidence,
    Edit,
    Evidence,
    Finding,
    Fix,
    Severity,
    Subject,
    Witness,
    merge,
    one_per_cause,
    rank,
)

findings = st.builds(
    make_finding,
    st.sampled_from(["O12", "O03", "G10"]),
    witness=st.sampled_from(Witness),
    line=st.one_of(st.none(), st.integers(1, 4)),
    subject=st.sampled_from(["a", "b", "c"]),
    severity=st.sampled_from(Severity),
    message=st.sampled_from(["one", "two"]),
    confidence=st.sampled_from(Confidence),
    related=st.lists(st.builds(Place, st.just("train.py"), st.integers(1, 4)), max_size=2).map(tuple),
)
many = st.lists(findings, max_size=12)
causes = {"O03": frozenset({"O12", "G10"}), "O12": frozenset({"G10"})}


@given(many, st.randoms(use_true_random=False))
def test_merging_and_ranking_do_not_depend_on_the_order(found: list[Finding], chance: object) -> None:
    shuffled = list(found)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rank(merge(shuffled), causes) == rank(merge(found), causes)


@given(many)
def test_nothing_is_lost_and_nothing_is_told_twice(found: list[Finding]) -> None:
    kept = [finding for diagnosis in rank(merge(found), causes) for finding in diagnosis.findings]
    assert all(finding in kept for finding in found)
    assert all(kept.count(finding) == 1 for finding in kept)


@given(many)
def test_a_diagnosis_is_about_one_rule_and_as_loud_as_its_loudest(found: list[Finding]) -> None:
    for diagnosis in merge(found):
        assert {finding.code for finding in diagnosis.findings} == {diagnosis.lead.code}
        assert diagnosis.severity.rank == min(finding.severity.rank for finding in diagnosis.findings)


@given(many)
def test_a_cause_stands_above_what_it_explains(found: list[Finding]) -> None:
    codes = [diagnosis.lead.code for diagnosis in rank(merge(found), causes)]
    for cause, symptoms in causes.items():
        later = codes[codes.index(cause) :] if cause in codes else codes
        assert all(codes.count(symptom) == later.count(symptom) for symptom in symptoms)


@given(many)
def test_only_what_is_present_is_explained(found: list[Finding]) -> None:
    ranked = rank(merge(found), causes)
    present = {diagnosis.lead.code for diagnosis in ranked}
    assert all(set(diagnosis.explains) <= present - {diagnosis.lead.code} for diagnosis in ranked)


def test_two_witnesses_of_one_line_are_one_diagnosis() -> None:
    source = make_finding(subject="softmax")
    run = make_finding(witness=Witness.RUN, subject="cross_entropy", line=9, related=(Place("train.py", 5),))
    (diagnosis,) = merge([run, source])
    assert diagnosis.witnesses == (Witness.SOURCE, Witness.RUN)


def test_one_witness_with_two_lines_is_two_diagnoses() -> None:
    assert len(merge([make_finding(line=5), make_finding(line=6)])) == 2


def test_the_run_leads_and_the_source_sharpens_its_place() -> None:
    edit = Edit("train.py", 5, 16, 5, 30, "x")
    source = make_finding(
        place=Place("train.py", 5, 16, 5, 30),
        related=(Place("train.py", 9, 12),),
        fix=Fix("Drop it.", (edit,), "unsafe"),
    )
    run = make_finding(witness=Witness.RUN, line=9, message="In 640 calls.")
    (diagnosis,) = merge([source, run])
    lead = diagnosis.lead
    assert (lead.message, lead.place, lead.fix.edits) == ("In 640 calls.", source.place, (edit,))
    assert lead.related == (Place("train.py", 9, 12),)


def test_certain_as_soon_as_one_witness_is() -> None:
    likely = make_finding(confidence=Confidence.LIKELY)
    assert merge([likely])[0].confidence is Confidence.LIKELY
    assert merge([likely, make_finding(witness=Witness.RUN)])[0].confidence is Confidence.CERTAIN


def test_evidence_of_all_witnesses_is_told_once() -> None:
    kept, calls = Evidence("kept", 0.2), Evidence("calls", 640)
    source = make_finding(evidence=(kept,))
    run = make_finding(witness=Witness.RUN, evidence=(calls, kept))
    assert merge([source, run])[0].evidence == (kept, calls)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"severity": Severity.ERROR}, {"severity": Severity.WARNING}),
        ({"confidence": Confidence.CERTAIN}, {"confidence": Confidence.LIKELY}),
        ({"line": 3}, {"line": 8}),
    ],
)
def test_what_to_fix_first_comes_first(first: dict[str, object], second: dict[str, object]) -> None:
    make: Callable[..., Finding] = make_finding
    one, other = make("O12", **{"line": 1, **first}), make("O12", **{"line": 2, **second})
    assert [diagnosis.lead for diagnosis in rank(merge([other, one]), {})] == [one, other]


def test_a_symptom_comes_last_however_loud() -> None:
    cause, other = make_finding("O03", severity=Severity.WARNING), make_finding("O12", severity=Severity.WARNING)
    symptom = make_finding("G10", severity=Severity.ERROR)
    ranked = rank(merge([symptom, other, cause]), {"O03": frozenset({"G10"})})
    assert [diagnosis.lead.code for diagnosis in ranked] == ["O03", "O12", "G10"]


def test_severities_are_ordered() -> None:
    assert Severity.ERROR.at_least(Severity.WARNING)
    assert Severity.WARNING.at_least(Severity.WARNING)
    assert not Severity.ADVICE.at_least(Severity.WARNING)


def test_what_a_run_shows_by_the_same_facts_is_said_once() -> None:
    def seen(line: int, message: str, subject: str = "nll_loss", **more: object) -> Finding:
        found = make_finding("O12", witness=Witness.RUN, line=line, message=message, **more)
        return msgspec.structs.replace(found, subject=Subject("call", f"{subject} at {line}", subject))

    ours = [seen(1, "31 % lost"), seen(2, "little is left"), seen(3, "31 % lost", variant="other")]
    found = one_per_cause(merge(ours))
    assert [[finding.place.line for finding in diagnosis.findings if finding.place] for diagnosis in found] == [
        [1, 2],
        [3],
    ]
    assert [place.line for place in found[0].lead.places] == [1, 2]
    assert len(one_per_cause(merge([ours[0], seen(2, "31 % lost", "mse_loss")]))) == 2
    measured = seen(2, "31 % lost", evidence=(Evidence("norm", 1.0),))
    assert len(one_per_cause(merge([ours[0], measured]))) == 2
    louder = [seen(1, "31 % lost"), seen(2, "28 % lost", severity=Severity.ADVICE)]
    assert len(one_per_cause(merge(louder))) == 2
    read = [*ours[:2], make_finding("O12", witness=Witness.SOURCE, line=1, subject="text")]
    assert len(one_per_cause(merge(read))) == 2


def test_places_that_need_different_changes_stay_apart() -> None:
    def seen(line: int, change: str) -> Finding:
        found = make_finding(line=line, witness=Witness.RUN, fix=Fix(change))
        return msgspec.structs.replace(found, subject=Subject("call", f"loss fed by train.py:{line}", "loss"))

    apart = one_per_cause(merge([seen(10, "Drop the sigmoid."), seen(12, "Drop the tanh.")]))
    assert [diagnosis.lead.fix.text for diagnosis in apart] == ["Drop the sigmoid.", "Drop the tanh."]
    assert len(one_per_cause(merge([seen(10, "Drop the sigmoid."), seen(12, "Drop the sigmoid.")]))) == 1


def test_one_optimizer_is_not_the_cause_of_what_another_one_does() -> None:
    def about(code: str, name: str) -> Finding:
        return msgspec.structs.replace(make_finding(code=code), subject=Subject("optimizer", name))

    causes = {"M14": frozenset({"O22"})}
    for name, explains in (("Adam", ("O22",)), ("SGD", ())):
        ranked = rank(merge([about("M14", "Adam"), about("O22", name)]), causes)
        assert {d.lead.code: d.explains for d in ranked}["M14"] == explains
