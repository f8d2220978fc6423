"""The report of `unstuck diagnose`: the cause, the proof, the change, what was ruled out, what to do next."""

from __future__ import annotations

import math
import os
from typing import Any

import msgspec

from unstuck.events import RunStatus
from unstuck.findings import Diagnosis, Witness
from unstuck.findings.investigation import Investigation, Reason, Skipped, time_needed
from unstuck.findings.results import Experiment, ExperimentVerdict, Proof, ProofVerdict
from unstuck.report import json, text
from unstuck.report.diff import unified_diff
from unstuck.report.outcomes import outcome_sentences
from unstuck.report.preview import preview_sentences
from unstuck.report.terminal import Line
from unstuck.report.text import PROSE, count, labelled, wrapped

TRYING = ("diagnose", "prove")
"""Commands that try remedies."""
NOT_PROVEN = {
    "no effect": "the fix changes nothing",
    "worse": "the fix makes it worse",
    "undecided": "undecided",
}

ENDINGS = {RunStatus.CRASHED: " and crashed", RunStatus.INTERRUPTED: " until it was interrupted"}
ENDED = {
    Reason.PROVEN: "the answer is proven, and nothing else was needed",
    Reason.ANSWERED: "an experiment has shown an error, and those after it were skipped",
    Reason.GOING_WELL: "the run is going well",
    Reason.BUDGET: "the remaining experiments need more time than was left",
    Reason.INTERRUPTED: "it was interrupted",
    Reason.NOTHING_LEFT: "nothing else was left to try",
}
"""Why an investigation ended."""
NOT_TRIED = {
    Reason.PROVEN: "not needed, the answer is proven",
    Reason.ANSWERED: "skipped, an experiment has already shown an error",
    Reason.GOING_WELL: "not needed, the run is going well",
}


def render(done: Investigation, width: int = PROSE) -> list[Line]:
    """The whole report, for a terminal `width` columns wide."""
    width = max(width, 40)
    prose = min(width, PROSE)
    lines = _heading(done, prose)
    lines += text.diagnosis_lines(done.result, width, lambda diagnosis: _proof(done, diagnosis, width))
    lines += _together(done, prose)
    lines += _experiments(done, width)
    lines += _section("Ruled out", done.ruled_out, prose)
    lines += _section("Not done", skipped_sentences(done), prose)
    return [*lines, *_closing(done, prose)]


def _heading(done: Investigation, prose: int) -> list[Line]:
    run = done.result.run
    rule = f"─── unstuck {done.result.command} ".ljust(prose, "─")
    lines: list[Line] = [[], [(rule, "quiet")], *wrapped(answer(done), prose, "strong")]
    for sentence in outcome_sentences(done.result.verdict):
        lines += wrapped(sentence, prose)
    if run is not None:
        script = " ".join([run.script, *run.arguments]) or "The model"
        ended = ENDINGS.get(run.status, "")
        if run.crash is not None:
            where = f" at {run.crash.place}" if run.crash.place else ""
            ended += f"{where} with {run.crash.kind}: {run.crash.message.splitlines()[0] if run.crash.message else ''}"
        elif done.ended_badly:
            ended = f" and {done.ended_badly}"
        lines += wrapped(f"{script} was watched for {count(run.steps, run.step_name)}{ended.rstrip('.: ')}.", prose)
    for sentence in (*run.received, *preview_sentences(run.previews)) if run else ():
        lines += wrapped(sentence, prose, "quiet")
    return [*lines, []]


def _proof(done: Investigation, diagnosis: Diagnosis, width: int) -> list[Line]:
    proof = done.proof_of(diagnosis)
    if proof is None:
        return []
    prose = min(width, PROSE)
    lines = labelled("proof", proof_sentence(proof), prose, "strong" if proof.verdict == ProofVerdict.CONFIRMED else "")
    if proof.verdict == ProofVerdict.CONFIRMED:
        lines += [*_curves(proof, width), *_difference(diagnosis, proof)]
        if diagnosis is done.result.verdict.diagnoses[0]:
            rest = ", ".join(done.left_over)
            lines += labelled("with it", f"still found: {rest}" if rest else "nothing else is found in the run", prose)
    return lines


def proof_sentence(proof: Proof) -> str:
    """`confirmed: with the edit, after 300 steps the loss is 0.2 instead of 2.3, over 3 seeds.`"""
    way = "with the edit that `fix` makes" if proof.is_edit else f"with {proof.remedy}"
    if proof.verdict == ProofVerdict.CONFIRMED:
        return f"confirmed {way}: {proof.sentence}"
    return f"{NOT_PROVEN[proof.verdict]} ({way}): {proof.sentence}"


def _curves(proof: Proof, width: int) -> list[Line]:
    from unstuck.findings.results import NamedCurve
    from unstuck.report.plots import plot

    if not proof.pairs:
        return []
    pair = proof.pairs[0]
    curves = [NamedCurve("without", pair.without), NamedCurve("with", pair.remedied)]
    return [[("  ", ""), *line] for line in plot(curves, min(width, PROSE) - 4)]


def _difference(diagnosis: Diagnosis, proof: Proof) -> list[Line]:
    """The exact change, where it is an edit."""
    if not proof.is_edit:
        return []
    edits = next((finding.fix.edits for finding in (diagnosis.lead, *diagnosis.findings) if finding.fix.edits), ())
    rows = unified_diff(edits).splitlines()
    styles = {"+": "command", "-": "mark", "@": "quiet"}
    return [[("  ", ""), (row, styles.get(row[:1], ""))] for row in rows if not row.startswith(("---", "+++"))]


def _together(done: Investigation, prose: int) -> list[Line]:
    if done.together is None:
        return []
    words = f"{done.together.code} fixed together: {done.together.sentence}"
    return [*wrapped(words, prose), []]


def _experiments(done: Investigation, width: int) -> list[Line]:
    prose = min(width, PROSE)
    notable = [one for one in done.experiments if not one.verdict.is_good and not _does_not_apply(one)]
    lines: list[Line] = [[("Experiments", "strong")]] if notable else []
    for experiment in notable:
        lines += experiment_lines(experiment, prose)
    return [*lines, []] if lines else []


def _does_not_apply(experiment: Experiment) -> bool:
    """Most models have no future to see and no examples to mix: that these could not run is not news."""
    return experiment.name in ("independence", "causality") and experiment.verdict == ExperimentVerdict.UNDECIDED


def experiment_lines(experiment: Experiment, prose: int) -> list[Line]:
    """What one experiment showed, in a paragraph."""
    lines = labelled(experiment.name, f"{experiment.verdict}: {experiment.sentence}", prose)
    for caveat in experiment.caveats:
        lines += labelled("", caveat, prose, "quiet")
    return lines


def _section(title: str, sentences: tuple[str, ...], prose: int) -> list[Line]:
    if not sentences:
        return []
    lines: list[Line] = [[(title, "strong")]]
    for sentence in sentences:
        lines += text.hanging([("  - ", "quiet")], sentence, prose)
    return [*lines, []]


def _closing(done: Investigation, prose: int) -> list[Line]:
    runs = sum(len(proof.pairs) for proof in done.proofs)
    pairs = f", {count(runs, 'pair')} of runs for the proofs" if runs else ""
    lines = wrapped(f"Took {time_used(done)}{pairs}{because(done)}. {done.protected}", prose, "quiet")
    first = "change that, then: " if done.principal is not None and "&&" not in done.next_command else ""
    more = _more_time(done)
    lines += labelled("more time", more, prose, "command") if more else []
    lines += labelled("next", first + done.next_command, prose, "command")
    if done.folder.is_absolute():
        lines += labelled("records", os.path.relpath(done.folder), prose, "quiet")
    return lines


def _more_time(done: Investigation) -> str:
    """The command that tries what did not fit into the budget."""
    if not any(one.why is Reason.BUDGET for one in done.skipped) or done.again is None:
        return ""
    needed = sum(one.needed or 0.0 for one in done.skipped)
    minutes = max(1, round(2 * (done.seconds + needed) / 60))
    return f"unstuck {done.result.command} --budget {minutes}m {done.again}"


def time_used(done: Investigation) -> str:
    """`14 of 300 s`"""
    return f"{done.seconds:.0f} of {done.budget:.0f} s"


def because(done: Investigation) -> str:
    """Why it ended."""
    return f": {ENDED[done.ended]}"


def skipped_sentences(done: Investigation) -> tuple[str, ...]:
    """What was not tried and why, grouped by reason. That a proof was enough is said at the end."""
    names: dict[str, list[str]] = {}
    for one in done.skipped:
        if one.why is not Reason.PROVEN:
            names.setdefault(_why_not(one, done.budget), []).append(one.what)
    return tuple(f"{', '.join(what)}: {why}." for why, what in names.items())


def _why_not(one: Skipped, budget: float) -> str:
    if one.needed is not None and one.left is not None:
        return f"needs {time_needed(one.needed, one.left, budget)}"
    return NOT_TRIED[one.why]


LARGE = 0.5


def answer(done: Investigation) -> str:
    """The first line: the cause, and the number that proves it."""
    principal = done.principal
    if principal is None:
        return text.answer(done.result)
    proof = done.proof_of(principal)
    name = f"{principal.lead.code} {principal.lead.name}"
    if proof is not None and proof.verdict == ProofVerdict.CONFIRMED:
        effect = f"{_effect(proof)} ({count(len(proof.pairs), 'seed')})"
        if done.result.verdict.learns and not _is_large(proof):
            return f"It learns, and fixing {name} {effect}."
        return f"Cause: {name}. Fixing it {effect}."
    label = text.likely(principal, done.result.verdict)
    unproven = " (not confirmed by a run)" if done.result.command in TRYING else ""
    if principal.lead.witness is Witness.EXPERIMENT:
        unproven = " (shown by an experiment)"
    return f"{label}{unproven}."


def _effect(proof: Proof) -> str:
    """`lowered the loss by 32-39 %`, as far as both runs have one."""
    if proof.interval is not None and max(proof.interval) < 0:
        least, most = sorted(round(-100 * share) for share in proof.interval)
        return f"lowered the loss by {least}–{most} %" if least < most else f"lowered the loss by {most} %"
    if proof.difference is not None and proof.difference < 0:
        return f"lowered the loss by {-100 * proof.difference:.0f} %"
    ends = [(pair.without.end, pair.remedied.end) for pair in proof.pairs]
    if ends and all(before is not None and after is not None and after < before for before, after in ends):
        before, after = (math.fsum(end or 0.0 for end in side) / len(side) for side in zip(*ends, strict=True))
        return f"lowered the loss from {before:.3g} to {after:.3g}"
    return "helped"


def _is_large(proof: Proof) -> bool:
    """Does the loss end at half of what it was, or less, on every seed? Then the run did not learn what it could."""
    ends = [(pair.without.end, pair.remedied.end) for pair in proof.pairs]
    known = [(before, after) for before, after in ends if before is not None and after is not None]
    return len(known) == len(ends) > 0 and all(after < LARGE * before for before, after in known if before > 0)


def document_text(done: Investigation) -> str:
    """The report as a JSON document."""
    return json.encode(document(done))


def document(done: Investigation) -> dict[str, Any]:
    """The result of the watched run as every report has it, together with what was tried."""
    principal = done.principal
    return {
        **json.document(done.result),
        "principal": principal.lead.code if principal else None,
        "proofs": [msgspec.to_builtins(proof) for proof in done.proofs],
        "together": msgspec.to_builtins(done.together),
        "left_over": done.left_over,
        "experiments": [msgspec.to_builtins(experiment) for experiment in done.experiments],
        "ruled_out": done.ruled_out,
        "skipped": [f"{one.what}: {_why_not(one, done.budget)}." for one in done.skipped],
        "not_tried": [msgspec.to_builtins(one) for one in done.skipped],
        "ended": done.ended,
        "protected": done.protected,
        "isolation": done.isolation,
        "ended_badly": done.ended_badly,
        "next": done.next_command,
        "seconds": round(done.seconds, 1),
        "budget": done.budget,
        "records": str(done.folder),
    }
