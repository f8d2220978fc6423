"""The report a person reads: what is true, where, why it matters, what to change."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence

from unstuck.events import Place, RunStatus
from unstuck.findings import Confidence, Diagnosis, Evidence, Fix, Severity, Witness
from unstuck.findings.result import LOOKED_FOR, Result, RunSummary
from unstuck.findings.verdict import Verdict
from unstuck.report.excerpt import Sources, excerpt
from unstuck.report.outcomes import count as count, number as number, outcome_sentences, trouble
from unstuck.report.terminal import Line, with_short_words

PROSE = 100
"""Sentences are not set wider than this, however wide the terminal."""
MOST_NAMES = 6
WITNESSES = {
    Witness.SOURCE: "in the source",
    Witness.SETUP: "in the live objects",
    Witness.RUN: "in the run",
    Witness.SURFACE: "in the surface",
    Witness.EXPERIMENT: "in an experiment",
}
ENDED = {
    RunStatus.FINISHED: "finished",
    RunStatus.EXITED: "exited",
    RunStatus.INTERRUPTED: "was interrupted",
    RunStatus.CRASHED: "crashed",
    RunStatus.STOPPED: "was stopped early,",
    RunStatus.RUNNING: "is still running",
    RunStatus.UNFINISHED: "was killed, left by os._exit() or ran out of disk,",
    RunStatus.LOGGED: "was not watched",
}
ELSEWHERE = "A training in a process that the script starts is not seen: watch the script that trains."
HYGIENE = "Memory, speed and reproducibility (not a cause)"


def render(result: Result, width: int = PROSE) -> list[Line]:
    """The whole report, for a terminal `width` columns wide."""
    width = max(width, 40)
    prose = min(width, PROSE)
    return [*_heading(result, prose), *diagnosis_lines(result, width), *_closing(result, prose)]


def diagnosis_lines(
    result: Result, width: int, proof_of: Callable[[Diagnosis], list[Line]] = lambda diagnosis: []
) -> list[Line]:
    """Every diagnosis with its symptoms, one line each, and what `proof_of` says about it."""
    prose = min(width, PROSE)
    sources = Sources(result.changed, result.texts)
    lines: list[Line] = []
    groups = _by_cause(result.verdict.diagnoses)
    for place, (diagnosis, *symptoms) in enumerate(groups):
        if result.run is not None and (title := _title(place, groups, result.verdict)):
            lines += [[(title, "strong")], []]
        lines += [*_diagnosis(diagnosis, sources, width, prose), *proof_of(diagnosis)]
        for symptom in symptoms:
            lines += [*labelled("leads to", _symptom(symptom), prose), *proof_of(symptom)]
        lines.append([])
    return lines


def _title(number: int, groups: Sequence[Sequence[Diagnosis]], verdict: Verdict) -> str:
    """The title of the section that begins with the diagnosis of this number, if one does."""
    is_hygiene = groups[number][0].is_hygiene
    if is_hygiene and not (number and groups[number - 1][0].is_hygiene):
        return HYGIENE
    after = number == 1 or (number > 1 and not is_hygiene and groups[number - 1][0].is_hygiene)
    return "Also found" if after and not is_hygiene and verdict.principal is not None else ""


def _by_cause(diagnoses: Sequence[Diagnosis]) -> list[list[Diagnosis]]:
    """Each diagnosis that nothing above it explains, followed by its symptoms."""
    groups: list[list[Diagnosis]] = []
    group_of: dict[int, list[Diagnosis]] = {}
    for index, diagnosis in enumerate(diagnoses):
        cause = next((i for i in range(index) if diagnosis.lead.code in diagnoses[i].explains), None)
        if cause is None:
            groups.append([])
        group_of[index] = groups[-1] if cause is None else group_of[cause]
        group_of[index].append(diagnosis)
    return groups


def _symptom(diagnosis: Diagnosis) -> str:
    lead = diagnosis.lead
    where = f" at {lead.place}" if lead.place else ""
    return f"{lead.code} {lead.name} ({diagnosis.severity.value}){where}"


def answer(result: Result) -> str:
    """The first line of a report on a run."""
    first = result.verdict.principal
    if first is not None:
        where = f" at {first.lead.place}" if first.lead.place else ""
        label = likely(first, result.verdict)
        whole, short = (f"{label}{part} ({_counts(result.verdict)})." for part in (where, ""))
        return whole if len(whole) <= PROSE else short
    crash = result.run.crash if result.run is not None else None
    if crash is not None and not result.verdict.diagnoses:
        from unstuck.findings.obstacles import obstacle_of, obstacle_sentence

        place = crash.place
        line = Sources(result.changed, result.texts).line(place.path, place.line, place.cell) if place else None
        obstacle = obstacle_of(crash, line or "")
        if obstacle is not None:
            return obstacle_sentence(obstacle, crash)
        return f"No rule explains the {crash.kind}{f' at {crash.place}' if crash.place else ''}."
    return outcome(result)


def likely(diagnosis: Diagnosis, verdict: Verdict) -> str:
    """`Likely cause: O12 double-softmax`; a warning is only the first thing to look at, and a run that learns needs no
    cause."""
    name = f"{diagnosis.lead.code} {diagnosis.lead.name}"
    if verdict.learns and (verdict.is_measured or diagnosis.severity is not Severity.ERROR):
        return f"It learns; worth fixing: {name}"
    return f"{'Likely cause' if diagnosis.severity is Severity.ERROR else 'Look first at'}: {name}"


def _heading(result: Result, prose: int) -> list[Line]:
    run = result.run
    if run is None:
        return []
    rule = "─── unstuck " + "─" * (prose - 12)
    lines: list[Line] = [[], [(rule, "quiet")], *wrapped(answer(result), prose, "strong")]
    for sentence in outcome_sentences(result.verdict):
        lines += wrapped(sentence, prose)
    lines += wrapped(_run_sentence(run), prose)
    if not run.trained and run.crash is None:
        lines += wrapped(ELSEWHERE, prose)
    for sentence in run.received:
        lines += wrapped(sentence, prose, "quiet")
    return [*lines, []]


def _run_sentence(run: RunSummary) -> str:
    words = shlex.join([run.script, *run.arguments]) if run.script else "The run"
    # A record without an end may have left out the last steps: those are sampled, and written in batches.
    least = "at least " if run.status == RunStatus.UNFINISHED and run.steps else ""
    after = f"after {least}{count(run.steps, run.step_name)}"
    if run.status == RunStatus.LOGGED:
        return f"{words} holds {run.reason}, to step {run.steps:,}; the run was not watched."
    if run.status == RunStatus.UNRECORDED:
        return f"{words} ended with exit code {run.exit_code}; its record stops {after}."
    took = f" and {run.seconds:.1f} s" if run.seconds is not None else ""
    because = f", because of {run.reason}" if run.reason else ""
    return f"{words} {ENDED[run.status]} {after}{took}{because}."


def _diagnosis(diagnosis: Diagnosis, sources: Sources, width: int, prose: int) -> list[Line]:
    lead = diagnosis.lead
    lines = _headline(diagnosis, prose)
    if lead.place:
        lines += excerpt(lead.place, lead.related, sources, width)
    lines += _evidence(diagnosis.evidence, prose)
    lines += labelled("why", lead.cause, prose)
    lines += labelled("change", lead.fix.text, prose)
    if lead.fix.edits:
        lines += labelled("fix", _fixing_command(lead.fix), prose, "command")
    if lead.verify:
        lines += labelled("then", f"{lead.verify.command}  should show {lead.verify.expect}", prose, "command")
    for witness, message in _other_witnesses(diagnosis).items():
        news = "" if lead.message.startswith(message.rstrip(".")) else f": {message}"
        lines += labelled("also", f"seen {WITNESSES[witness]}{news}", prose)
    return [*lines, *labelled("more", lead.docs, prose, "command")]


def _fixing_command(fix: Fix) -> str:
    path = shlex.quote(fix.edits[0].path)
    if fix.safety == "safe":
        return f"unstuck lint --fix {path}"
    return f"unstuck lint --unsafe-fixes {path}  (look first: add --diff)"


def _other_witnesses(diagnosis: Diagnosis) -> dict[Witness, str]:
    """What the witnesses that do not lead say, one sentence each."""
    others = [finding for finding in diagnosis.findings if finding.witness is not diagnosis.lead.witness]
    return {finding.witness: finding.message for finding in reversed(others)}


def _headline(diagnosis: Diagnosis, prose: int) -> list[Line]:
    lead = diagnosis.lead
    severity = diagnosis.severity.value
    likely = " (likely)" if diagnosis.confidence is Confidence.LIKELY else ""
    start = f"{severity}{likely} {lead.code} {lead.name}:"
    first, *rest = textwrap.wrap(with_short_words(f"{start} {lead.message}"), prose, break_on_hyphens=False) or [start]
    styled = first.startswith(start)
    top: Line = [(start, severity), (first[len(start) :], "strong")] if styled else [(first, severity)]
    return [top, *([(line, "strong")] for line in rest)]


def _evidence(evidence: Sequence[Evidence], prose: int) -> list[Line]:
    """Aligned in two columns; a name too long for its column keeps its row."""
    names = max((len(item.name) for item in evidence), default=0)
    values = max((len(_value(item)) for item in evidence if len(_value(item)) <= 16), default=0)
    lines: list[Line] = []
    for item in evidence:
        limit = f"  (threshold {_scalar(item.threshold)})" if item.threshold is not None else ""
        where = f"  {item.place}" if item.place else ""
        value = _value(item).ljust(values) if limit or where else _value(item)
        lines += hanging([(f"  {item.name:<{names}}  ", "quiet")], f"{value}{limit}{where}", prose)
    return [*lines, []] if lines else []


def _value(item: Evidence) -> str:
    if isinstance(item.value, list):
        shown = item.value[:MOST_NAMES]
        more = len(item.value) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")
    return f"{_scalar(item.value)} {item.unit}".rstrip()


def _scalar(value: bool | int | float | str | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) else str(value)


def labelled(label: str, text: str, prose: int, style: str = "") -> list[Line]:
    """`  label     text`, the text wrapped next to it."""
    return hanging([(f"  {label:<8}  ", "label")], text, prose, style)


def hanging(start: Line, text: str, prose: int, style: str = "") -> list[Line]:
    """`start`, then the text wrapped next to it. Indented lines of the text are code and stay as they are."""
    indent = sum(len(piece) for piece, _ in start)
    rows: list[str] = []
    for paragraph in text.split("\n"):
        code = paragraph.startswith((" ", "\t"))
        short = with_short_words(paragraph)
        wrap = textwrap.wrap(short, max(prose - indent, 20), break_on_hyphens=False, break_long_words=False)
        rows += [paragraph] if code else wrap or [""]
    first: Line = [*start, (rows[0], style)]
    return [first, *([(" " * indent, ""), (row, style)] for row in rows[1:])]


def wrapped(text: str, prose: int, style: str = "") -> list[Line]:
    """A paragraph."""
    short = with_short_words(text)
    return [[(line, style)] for line in textwrap.wrap(short, prose, break_on_hyphens=False, break_long_words=False)]


def _closing(result: Result, prose: int) -> list[Line]:
    verdict = result.verdict
    lines: list[Line] = []
    for good in verdict.good_news if result.run is None else ():  # the heading of a run has it
        lines += wrapped(f"{good.lead.code} {good.lead.name}: {good.lead.message}", prose, "strong")
    for problem in result.errors:
        lines += wrapped(problem_sentence(problem.message, problem.place), prose, "warning")
    for path in sorted(result.changed) if verdict.diagnoses else ():
        lines += wrapped(f"{path} is no longer what ran, so its lines are not shown.", prose)
    if result.run is None:
        lines += wrapped(outcome(result), prose, "strong")
    if verdict.ignored:
        lines += wrapped(f"{count(len(verdict.ignored), 'finding')} ignored by a comment on the line.", prose)
    if verdict.unconfirmed and result.run:
        more = f"lint sees {len(verdict.unconfirmed)} more that the run did not show"
        lines += wrapped(f"{more}: unstuck lint {shlex.quote(result.run.script)}", prose)
    if verdict.checked and verdict.diagnoses:  # without a finding, the outcome says how many
        lines += wrapped(f"{rules_checked(verdict)}; `--checked` lists them.", prose, "quiet")
    if verdict.checked:
        lines += _not_checked(result, prose)
    if result.run and result.run.record:
        lines += hanging([("Record       ", "quiet")], result.run.record, prose, "quiet")
        lines += _data_hint(result.run, prose)
    return lines


def _not_checked(result: Result, prose: int) -> list[Line]:
    """What was not looked at. Of a run only what its record lacks: `--checked` lists rules that do not apply to it."""
    lines: list[Line] = []
    known = result.verdict.not_checked if result.run is None else ()
    for sentence in (*known, *result.verdict.gaps):
        lines += hanging([("Not checked  ", "quiet")], sentence, prose, "quiet")
    return lines


def checked_lines(verdict: Verdict, prose: int = PROSE) -> list[Line]:
    """Every rule that was checked, and why others were not, for those who ask."""
    lines = hanging([("Checked      ", "quiet")], ", ".join(verdict.checked), prose, "quiet")
    for sentence in (*verdict.not_checked, *verdict.gaps):
        lines += hanging([("Not checked  ", "quiet")], sentence, prose, "quiet")
    return lines


def _data_hint(run: RunSummary, prose: int) -> list[Line]:
    if not run.has_pictures or run.status == RunStatus.RUNNING:
        return []
    folder, name = os.path.split(run.record)
    where = name if folder == os.path.join(".unstuck", "runs") else run.record
    return hanging(
        [("Data         ", "quiet")], f"unstuck report {shlex.quote(where)} --html page.html", prose, "quiet"
    )


def problem_sentence(message: str, place: Place | None) -> str:
    """The problem after its place, unless the sentence names the file itself."""
    return f"{place}: {message}" if place and place.path not in message else message


def outcome(result: Result) -> str:
    """How much was found, in a sentence."""
    verdict = result.verdict
    where = _looked_at(result)
    advice_alone = all(diagnosis.severity is Severity.ADVICE for diagnosis in verdict.diagnoses)
    if verdict.diagnoses and not verdict.in_trouble and not (advice_alone and trouble(verdict)):
        return f"Found {_counts(verdict)}{where if result.command == 'lint' else ''}."
    if not verdict.checked:
        return "No file could be checked." if result.command == "lint" else "Nothing was checked."
    if result.run is not None and not result.run.trained and not verdict.diagnoses:
        return f"No training was seen: {LOOKED_FOR}."
    if bad := trouble(verdict):
        return f"No cause found: {bad}; {rules_checked(verdict)}."
    if result.run is not None and not result.run.steps:
        return f"No optimizer stepped, so no training was judged; {rules_checked(verdict)}."
    return f"Nothing found{where}; {rules_checked(verdict)}."


def _looked_at(result: Result) -> str:
    """` in 3 files`: no answer says more than what was looked at."""
    if result.command == "lint":
        return f" in {count(result.files, 'file')}"
    if result.run is not None:
        return f" in {count(result.run.steps, 'step')}"
    return f" in {result.verdict.scope}" if result.verdict.scope else ""


def rules_checked(verdict: Verdict) -> str:
    """`63 rules checked`."""
    return f"{count(len(verdict.checked), 'rule')} checked"


def _counts(verdict: Verdict) -> str:
    parts = [(severity, verdict.count(severity)) for severity in Severity]
    words = [_counted(severity, amount) for severity, amount in parts if amount]
    return _listed(words)


def _counted(severity: Severity, amount: int) -> str:
    if severity is Severity.ADVICE:
        return f"{amount:,} advice"
    return count(amount, severity.value)


def _listed(words: Iterable[str]) -> str:
    *start, last = words
    return f"{', '.join(start)} and {last}" if start else last
