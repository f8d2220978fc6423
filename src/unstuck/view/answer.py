"""The answer of a report as data for the page: findings with their lines and changes, proofs, experiments."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

import msgspec

from unstuck.events import RunStatus
from unstuck.findings import Confidence, Diagnosis, Evidence, Severity
from unstuck.findings.curve import Curve
from unstuck.findings.investigation import Investigation
from unstuck.findings.results import Experiment, ExperimentVerdict, Measure, Proof, ProofVerdict, Status, Table
from unstuck.judge import program_words
from unstuck.record import Record
from unstuck.report.diff import unified_diff
from unstuck.report.excerpt import Sources, excerpt
from unstuck.report.experiment import cell_text
from unstuck.report.investigation import answer, because, skipped_sentences, time_used
from unstuck.report.outcomes import outcome_sentences
from unstuck.report.text import WITNESSES, count, number, problem_sentence
from unstuck.view.thin import Number, short, thinned

CODE_WIDTH = 100
MOST_POINTS = 400
"""Of one curve of a proof or an experiment."""
CROPPED = 4.0
"""A sweep goes on until the loss diverges; its chart ends at so many times its start."""


class Tone(msgspec.Struct, frozen=True):
    """A word that is shown as a chip: `error`, `warning`, `advice`, `good` or `quiet`."""

    kind: str
    word: str


class Paragraph(msgspec.Struct, frozen=True, omit_defaults=True):
    """Text, or lines of code."""

    text: str
    code: bool = False


class PlainLine(msgspec.Struct, frozen=True):
    """One line of a chart that has no steps of the run: `own` and `other` are the colours of a pair."""

    label: str
    xs: list[float]
    values: list[Number]


class Upright(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place on the x axis, or a stretch of it that is shaded."""

    label: str
    low: float
    high: float | None = None


class PlainChart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chart on its own."""

    title: str
    lines: list[PlainLine]
    x: str = "step"
    log_x: bool = False
    log: bool = False
    marks: list[Upright] = []
    most: float | None = None
    """Where the y axis ends if the values go on."""


class ProofPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a finding when its remedy was tried."""

    tone: Tone
    sentence: str
    charts: list[PlainChart] = []


class FindingPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One diagnosis."""

    code: str
    name: str
    tone: Tone
    message: str
    cause: str
    fix: list[Paragraph]
    key: str
    """The same as long as the finding is the same."""
    place: str = ""
    excerpt: list[list[tuple[str, str]]] = []
    """Lines of pieces, each with its style."""
    evidence: list[tuple[str, str]] = []
    seen: str = ""
    difference: list[str] = []
    verify: str = ""
    expect: str = ""
    docs: str = ""
    follows: str = ""
    """The code of the finding that it follows from."""
    principal: bool = False
    step: int | None = None
    """After how many steps the record first showed it, where that is known."""
    exact: bool = False
    rows: list[str] = []
    """Names of layers and tensors that it mentions."""
    proof: ProofPart | None = None


class ExperimentPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One experiment."""

    name: str
    tone: Tone
    sentence: str
    method: str
    caveats: list[str] = []
    charts: list[PlainChart] = []
    columns: list[str] = []
    rows: list[list[str]] = []
    measures: list[tuple[str, str]] = []


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What comes first, and what there is to know about how it was found."""

    headline: str
    tone: str
    sentences: list[str] = []
    next_command: str = ""
    findings: list[FindingPart] = []
    together: ProofPart | None = None
    left_over: str = ""
    experiments: list[ExperimentPart] = []
    ruled_out: list[str] = []
    skipped: list[str] = []
    checked: list[str] = []
    not_checked: list[str] = []
    gaps: list[str] = []
    problems: list[str] = []
    method: list[str] = []


def answer_of(
    done: Investigation, record: Record | None, names: Collection[str] = (), steps: dict[str, int] | None = None
) -> Answer:
    """Everything that is said. `names`: of layers; `steps`: when findings were first seen, by their key."""
    verdict = done.result.verdict
    principal = done.principal
    sources = Sources(done.result.changed, done.result.texts)
    findings = [_finding(done, diagnosis, sources, names, steps or {}) for diagnosis in verdict.diagnoses]
    rest = ", ".join(done.left_over)
    proof = done.proof_of(principal) if principal is not None else None
    confirmed = proof is not None and proof.verdict is ProofVerdict.CONFIRMED
    still = f"With it, still found: {rest}." if rest else "With it, nothing else is found in the run."
    return Answer(
        headline=_headline(done),
        tone=_tone(done),
        sentences=_sentences(done),
        next_command=_next(done, record),
        findings=findings,
        together=_proof(done.together) if done.together is not None else None,
        left_over=still if confirmed else "",
        experiments=[_experiment(one) for one in done.experiments],
        ruled_out=list(done.ruled_out),
        skipped=list(skipped_sentences(done)),
        checked=list(verdict.checked),
        not_checked=list(verdict.not_checked),
        gaps=list(verdict.gaps),
        problems=[problem_sentence(problem.message, problem.place) for problem in done.result.errors],
        method=_method(done),
    )


def _headline(done: Investigation) -> str:
    run = done.result.run
    if run is not None and run.status is RunStatus.RUNNING and not run.trained:
        return "Waiting for the first training step."
    if (
        run is not None
        and run.status is RunStatus.RUNNING
        and done.principal is None
        and not done.result.verdict.in_trouble
    ):
        return f"Nothing found so far, in {count(run.steps, run.step_name)}."
    return answer(done)


def key_of(diagnosis: Diagnosis) -> str:
    """The same for one finding in every judgement of a run."""
    return f"{diagnosis.lead.id} {diagnosis.lead.subject.kind} {diagnosis.lead.subject.name}"


def _tone(done: Investigation) -> str:
    verdict = done.result.verdict
    principal = done.principal
    if principal is not None and not (verdict.learns and verdict.is_measured):
        return "error" if principal.severity is Severity.ERROR else "warning"
    if verdict.in_trouble or (done.result.run is not None and done.result.run.crash is not None):
        return "error"
    if verdict.learns:
        return "good"
    return "quiet"


def _sentences(done: Investigation) -> list[str]:
    run = done.result.run
    sentences = list(outcome_sentences(done.result.verdict))
    if run is not None:
        sentences += run.received
    changed = [path for path in sorted(done.result.changed) if done.result.verdict.diagnoses]
    return [*sentences, *(f"{path} is no longer what ran, so its lines are not shown." for path in changed)]


def _next(done: Investigation, record: Record | None) -> str:
    if done.next_command:
        return done.next_command
    if record is None or done.principal is None or record.started.watched != "run":
        return ""
    return shlex.join(["unstuck", "diagnose", *program_words(record), *record.started.arguments])


def _finding(
    done: Investigation, diagnosis: Diagnosis, sources: Sources, names: Collection[str], steps: dict[str, int]
) -> FindingPart:
    lead = diagnosis.lead
    diagnoses = done.result.verdict.diagnoses
    cause = next((d for d in diagnoses if lead.code in d.explains and d is not diagnosis), None)
    edits = next((finding.fix.edits for finding in (lead, *diagnosis.findings) if finding.fix.edits), ())
    changed = any(edit.path in done.result.changed for edit in edits)
    likely = ", likely" if diagnosis.confidence is Confidence.LIKELY else ""
    proof = done.proof_of(diagnosis)
    return FindingPart(
        code=lead.code,
        name=lead.name,
        tone=Tone(diagnosis.severity.value, f"{diagnosis.severity.value}{likely}"),
        message=lead.message,
        cause=lead.cause,
        fix=_paragraphs(lead.fix.text),
        key=key_of(diagnosis),
        place=str(lead.place) if lead.place else "",
        excerpt=[list(line) for line in excerpt(lead.place, lead.related, sources, CODE_WIDTH)] if lead.place else [],
        evidence=[(item.name, evidence_words(item)) for item in diagnosis.evidence],
        seen=", ".join(WITNESSES[witness] for witness in diagnosis.witnesses),
        difference=[] if changed else unified_diff(edits).splitlines(),
        verify=lead.verify.command if lead.verify else "",
        expect=lead.verify.expect if lead.verify else "",
        docs=lead.docs,
        follows=cause.lead.code if cause is not None else "",
        principal=diagnosis is done.principal,
        step=steps.get(key_of(diagnosis)),
        rows=_mentioned(diagnosis, names),
        proof=_proof(proof) if proof is not None else None,
    )


def _mentioned(diagnosis: Diagnosis, names: Collection[str]) -> list[str]:
    """The layers and tensors that are named by its subject or its evidence."""
    said = {finding.subject.name for finding in diagnosis.findings}
    for item in diagnosis.evidence:
        said |= set(item.value) if isinstance(item.value, list) else {str(item.value)}
    return [name for name in names if name in said]


def _paragraphs(text: str) -> list[Paragraph]:
    """Sentences as a paragraph each, indented lines as code."""
    parts: list[Paragraph] = []
    code: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith((" ", "\t")):
            code.append(line)
            continue
        parts += [Paragraph("\n".join(code), code=True)] if code else []
        code = []
        parts += [Paragraph(line)] if line else []
    return parts


def evidence_words(item: Evidence) -> str:
    """Its value with its unit, its threshold and its place."""
    value = ", ".join(item.value) if isinstance(item.value, list) else f"{_scalar(item.value)} {item.unit}".rstrip()
    limit = f" (threshold {_scalar(item.threshold)})" if item.threshold is not None else ""
    return value + limit + (f" at {item.place}" if item.place else "")


def _scalar(value: Measure) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else value


def _proof(proof: Proof) -> ProofPart:
    good = proof.verdict is ProofVerdict.CONFIRMED
    way = "With the change" if proof.is_edit else f"With {proof.remedy}"
    heights = [y for pair in proof.pairs for curve in (pair.without, pair.remedied) for y in curve.finite]
    log = bool(heights) and min(heights) > 0 and max(heights) > 30 * min(heights)
    charts = [
        PlainChart(
            title=f"Seed {pair.seed}",
            lines=[
                _curve(_labelled("without", pair.without_status), pair.without),
                _curve(_labelled("with", pair.remedied_status), pair.remedied),
            ],
            log=log,
        )
        for pair in proof.pairs
    ]
    return ProofPart(
        tone=Tone("good" if good else "quiet", proof.verdict),
        sentence=f"{way}: {proof.sentence}",
        charts=charts,
    )


def _labelled(label: str, status: Status) -> str:
    """How a trial ended, where that was not by taking its steps."""
    return f"{label} ({status})" if status in (Status.CRASHED, Status.KILLED, Status.FAILED) else label


def _curve(label: str, curve: Curve, xs: Sequence[float] = ()) -> PlainLine:
    if xs:
        return PlainLine(
            label, [float(x) for x in xs[: len(curve.losses)]], [short(y) for y in curve.losses[: len(xs)]]
        )
    steps, values = thinned(curve.steps, curve.losses, MOST_POINTS)
    return PlainLine(label, [float(step) for step in steps], values)


def _experiment(experiment: Experiment) -> ExperimentPart:
    kind = "good" if experiment.verdict.is_good else "warning"
    if experiment.verdict is ExperimentVerdict.UNDECIDED:
        kind = "quiet"
    table: Table | None = experiment.table
    return ExperimentPart(
        name=experiment.name,
        tone=Tone(kind, experiment.verdict),
        sentence=experiment.sentence,
        method=experiment.method,
        caveats=list(experiment.caveats),
        charts=[_experiment_chart(experiment)] if experiment.curves else [],
        columns=list(table.columns) if table is not None else [],
        rows=[[cell_text(value) for value in row] for row in table.rows] if table is not None else [],
        measures=[(name.replace("_", " "), _scalar(value)) for name, value in experiment.measures.items()],
    )


def _experiment_chart(experiment: Experiment) -> PlainChart:
    swept = experiment.x_axis != "step"
    lines = [_curve(named.label, named.curve, experiment.xs if swept else ()) for named in experiment.curves]
    most = max((CROPPED * abs(named.curve.start or 0.0) for named in experiment.curves), default=0.0)
    heights = [y for line in lines for y in line.values if y is not None and (not swept or not most or y <= most)]
    return PlainChart(
        title=f"Loss by {experiment.x_axis}",
        lines=lines,
        x=experiment.x_axis,
        log_x=swept,
        log=bool(heights) and min(heights) > 0 and max(heights) > 30 * min(heights),
        marks=_marks(experiment) if swept else [],
        most=short(most) if swept and most else None,
    )


def _marks(experiment: Experiment) -> list[Upright]:
    """The band of a sweep, the rate of the script and the one suggested."""
    low, high = _rate(experiment, "lowest"), _rate(experiment, "highest")
    marks = [Upright("productive band", low, high)] if low is not None and high is not None else []
    for label, key in (("your rate", "own"), ("suggested", "suggested")):
        rate = _rate(experiment, key)
        marks += [Upright(label, rate)] if rate is not None else []
    return marks


def _rate(experiment: Experiment, key: str) -> float | None:
    value = experiment.measures.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _method(done: Investigation) -> list[str]:
    runs = sum(len(proof.pairs) for proof in done.proofs)
    facts = [f"It took {time_used(done)}{because(done)}."] if done.budget else []
    if runs:
        facts.append(
            f"{count(runs, 'pair')} of runs for the proofs: the same script, the same seed, the same number of steps,"
            " once as it is and once with only that change."
        )
    facts += [f"{one.name}: {one.method}." for one in done.experiments]
    return [*facts, done.protected] if done.protected else facts
