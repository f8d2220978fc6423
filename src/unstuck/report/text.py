"""The report a person reads: what is true, where, why it matters, what to change."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence

from unstuck.events import Place
from unstuck.findings import Confidence, Diagnosis, Evidence, Fix, Severity, Witness
from unstuck.findings.result import Result, RunSummary
from unstuck.findings.verdict import Verdict
from unstuck.record.goals import MOVING
from unstuck.record.trend import Trend
from unstuck.report.excerpt import Sources, excerpt
from unstuck.report.terminal import Line

PROSE = 100
"""Sentences are not set wider than this, however wide the terminal."""
MOST_NAMES = 6
MANY = 100
"""From so many steps on it is not for want of steps that a loss shows no direction."""
SEEN = {
    Witness.SOURCE: "in the source",
    Witness.SETUP: "in the live objects",
    Witness.RUN: "in the run",
    Witness.SURFACE: "in the surface",
    Witness.EXPERIMENT: "in an experiment",
}
ENDED = {
    "finished": "finished",
    "exited": "exited",
    "interrupted": "was interrupted",
    "crashed": "crashed",
    "stopped": "was stopped early,",
    "running": "is still running",
    "unfinished": "was killed, left by os._exit() or ran out of disk,",
}


def render(result: Result, width: int = PROSE) -> list[Line]:
    """The whole report, for a terminal `width` columns wide."""
    width = max(width, 40)
    prose = min(width, PROSE)
    return [*_heading(result, prose), *diagnosis_lines(result, width), *_closing(result, prose)]


def diagnosis_lines(
    result: Result,
    width: int,
    beside: Callable[[Diagnosis], list[Line]] = lambda diagnosis: [],
    title: str = "Most likely cause",
) -> list[Line]:
    """Every diagnosis, the first under a title, each followed by what is known `beside` it."""
    prose = min(width, PROSE)
    sources = Sources(result.changed, result.texts)
    lines: list[Line] = []
    for index, diagnosis in enumerate(result.verdict.diagnoses):
        lines += _title(result, index, title)
        above, below = result.verdict.diagnoses[:index], result.verdict.diagnoses[index + 1 :]
        cause = next((other for other in above if diagnosis.lead.code in other.explains), None)
        if cause is not None:
            lines += _symptom(diagnosis, cause, prose)
        else:
            lines += _diagnosis(diagnosis, [other.lead.code for other in below], sources, width, prose)
        if extra := beside(diagnosis):
            lines[-1:] = [*extra, []]
    return lines


def _title(result: Result, index: int, title: str) -> list[Line]:
    """What a run suffers from has a most likely cause; a script that was only read may not suffer at all."""
    first = result.verdict.diagnoses[0]
    if result.run is None or first.severity is Severity.ADVICE:
        return []
    if index == 0:
        return [[(title, "strong")], []]
    return [[("Also found", "strong")], []] if index == 1 else []


def _heading(result: Result, prose: int) -> list[Line]:
    run = result.run
    if run is None:
        return []
    rule = "─── unstuck " + "─" * (prose - 12)
    lines: list[Line] = [[], [(rule, "quiet")], *wrapped(_run_sentence(run), prose)]
    if result.verdict.trend and result.verdict.trend.steps:
        lines += wrapped(trend_sentence(result.verdict.trend), prose)
    for sentence in run.received:
        lines += wrapped(sentence, prose, "quiet")
    if run.crash and not result.verdict.diagnoses:
        where = f" at {run.crash.place}" if run.crash.place else ""
        lines += wrapped(f"No rule explains the {run.crash.kind}{where}.", prose)
    return [*lines, []]


def _run_sentence(run: RunSummary) -> str:
    words = shlex.join([run.script, *run.arguments]) if run.script else "The run"
    # A record without an end may have left out the last steps: those are sampled, and written in batches.
    least = "at least " if run.status == "unfinished" and run.steps else ""
    after = f"after {least}{count(run.steps, 'optimizer step')}"
    if run.status == "unrecorded":
        return f"{words} ended with exit code {run.exit_code}; its record stops {after}."
    took = f" and {run.seconds:.1f} s" if run.seconds is not None else ""
    because = f", because of {run.reason}" if run.reason else ""
    return f"{words} {ENDED.get(run.status, run.status)} {after}{took}{because}."


def trend_sentence(trend: Trend) -> str:
    """Where the loss went, in its own numbers."""
    values = f"{number(trend.first)} → {number(trend.last)} over {count(trend.steps, 'step')}"
    if trend.word == "non-finite":
        began = "" if trend.first is None else f" (it began at {number(trend.first)})"
        return f"The loss ended non-finite{began}, {count(trend.steps, 'step')} on record."
    if trend.steps == 1 and trend.last is not None:
        return f"One loss was seen: {number(trend.last)}."
    if trend.word == "too short":
        doubt = "too short" if trend.steps < MANY else "too noisy"
        return f"The loss went {values}: {doubt} to tell a direction."
    if trend.word == MOVING:
        return f"The loss went {values}; what it is measured against moves with the model, so it need not fall."
    if trend.runs_to_go is not None:
        pace = f"at this pace it would take {trend.runs_to_go:.0f} more runs as long to reach 0"
        return f"The loss is {trend.word}: {values}; {pace}."
    return f"The loss is {trend.word}: {values}."


def _symptom(diagnosis: Diagnosis, cause: Diagnosis, prose: int) -> list[Line]:
    """What follows from something reported above is told in short: it goes when its cause goes."""
    where = f" (it shows at {diagnosis.lead.place})" if diagnosis.lead.place else ""
    lines = _headline(diagnosis, prose)
    lines += labelled("follows", f"from {cause.lead.code} above: mend that first{where}", prose)
    return [*lines, *labelled("more", diagnosis.lead.docs, prose, "command"), []]


def _diagnosis(diagnosis: Diagnosis, below: Sequence[str], sources: Sources, width: int, prose: int) -> list[Line]:
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
        lines += labelled("also", f"seen {SEEN[witness]}{news}", prose)
    if symptoms := [code for code in diagnosis.explains if code in below]:
        lines += labelled("leads to", f"{', '.join(symptoms)}, reported below", prose)
    return [*lines, *labelled("more", lead.docs, prose, "command"), []]


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
    first, *rest = textwrap.wrap(f"{start} {lead.message}", prose, break_on_hyphens=False) or [start]
    styled = first.startswith(start)
    top: Line = [(start, severity), (first[len(start) :], "strong")] if styled else [(first, severity)]
    return [top, *([(line, "strong")] for line in rest)]


def _evidence(evidence: Sequence[Evidence], prose: int) -> list[Line]:
    """Aligned in two columns; a name too long for its column keeps its row."""
    names = max((len(item.name) for item in evidence), default=0)
    values = max((len(_value(item)) for item in evidence if len(_value(item)) <= 16), default=0)
    lines: list[Line] = []
    for item in evidence:
        held = f"  (threshold {_scalar(item.threshold)})" if item.threshold is not None else ""
        where = f"  {item.place}" if item.place else ""
        value = _value(item).ljust(values) if held or where else _value(item)
        lines += hanging([(f"  {item.name:<{names}}  ", "quiet")], f"{value}{held}{where}", prose)
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


def number(value: float | None) -> str:
    """Four significant digits, which is what a person compares."""
    return "unknown" if value is None else f"{value:.4g}"


def count(amount: int, what: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{amount:,} {what}" if amount == 1 else f"{amount:,} {what}s"


def labelled(label: str, text: str, prose: int, style: str = "") -> list[Line]:
    """`  label     text`, the text wrapped beside it."""
    return hanging([(f"  {label:<8}  ", "label")], text, prose, style)


def hanging(start: Line, text: str, prose: int, style: str = "") -> list[Line]:
    """`start`, then the text wrapped beside it. Indented lines of the text are code and stay as they are."""
    indent = sum(len(piece) for piece, _ in start)
    rows: list[str] = []
    for paragraph in text.split("\n"):
        code = paragraph.startswith((" ", "\t"))
        wrap = textwrap.wrap(paragraph, max(prose - indent, 20), break_on_hyphens=False, break_long_words=False)
        rows += [paragraph] if code else wrap or [""]
    first: Line = [*start, (rows[0], style)]
    return [first, *([(" " * indent, ""), (row, style)] for row in rows[1:])]


def wrapped(text: str, prose: int, style: str = "") -> list[Line]:
    """A paragraph."""
    return [[(line, style)] for line in textwrap.wrap(text, prose, break_on_hyphens=False, break_long_words=False)]


def _closing(result: Result, prose: int) -> list[Line]:
    verdict = result.verdict
    lines: list[Line] = []
    for good in verdict.good_news if result.run is None else ():  # of a run it stands at the top
        lines += wrapped(f"{good.lead.code} {good.lead.name}: {good.lead.message}", prose, "strong")
    for problem in result.errors:
        lines += wrapped(problem_sentence(problem.message, problem.place), prose, "warning")
    for path in sorted(result.changed) if verdict.diagnoses else ():
        lines += wrapped(f"{path} is no longer what ran, so its lines are not shown.", prose)
    lines += wrapped(outcome(result), prose, "strong")
    if verdict.ignored:
        lines += wrapped(f"{count(len(verdict.ignored), 'finding')} ignored, by a comment on the line.", prose)
    if verdict.unconfirmed and result.run:
        more = f"lint sees {len(verdict.unconfirmed)} more that the run did not show"
        lines += wrapped(f"{more}: unstuck lint {shlex.quote(result.run.script)}", prose)
    # Of a clean lint the number says enough; a run that does not learn is searched for what else was ruled out.
    if verdict.checked and (verdict.diagnoses or result.command != "lint"):
        lines += hanging([("Checked      ", "quiet")], " ".join(verdict.checked), prose, "quiet")
    for sentence in verdict.not_checked if verdict.checked else ():  # else the sentence above says it
        lines += hanging([("Not checked  ", "quiet")], sentence, prose, "quiet")
    if result.run and result.run.record:
        lines += hanging([("Record       ", "quiet")], result.run.record, prose, "quiet")
        lines += _data_hint(result.run, prose)
    return lines


def _data_hint(run: RunSummary, prose: int) -> list[Line]:
    if not run.has_pictures or run.status == "running":
        return []
    folder, name = os.path.split(run.record)
    where = name if folder == os.path.join(".unstuck", "runs") else run.record
    return hanging(
        [("Data seen    ", "quiet")], f"unstuck report {shlex.quote(where)} --html page.html", prose, "quiet"
    )


def problem_sentence(message: str, place: Place | None) -> str:
    """The problem with its place in front, unless the sentence names the file itself."""
    return f"{place}: {message}" if place and place.path not in message else message


def outcome(result: Result) -> str:
    """How much was found, in a sentence."""
    verdict = result.verdict
    where = f" in {count(result.files, 'file')}" if result.command == "lint" else ""
    if verdict.diagnoses:
        return f"Found {_counts(verdict)}{where}."
    if not verdict.checked:
        return "No file could be checked." if result.command == "lint" else "Nothing was checked."
    known = f"{len(verdict.checked)} pitfalls" if len(verdict.checked) != 1 else "one pitfall"
    if verdict.trend and verdict.trend.word in ("flat", "crawling", "rising", "spiking", "non-finite"):
        return f"No cause found: the loss is {verdict.trend.word}, but it is none of the {known} checked."
    return f"Nothing found{where}; {known} checked."


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
