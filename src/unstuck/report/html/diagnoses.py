"""A diagnosis in the page: what is true, where, why, what to change, and what became of the change."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.findings import Confidence, Diagnosis, Evidence
from unstuck.findings.investigation import Investigation
from unstuck.findings.results import Proof, ProofVerdict
from unstuck.report.diff import unified_diff
from unstuck.report.excerpt import Sources, excerpt
from unstuck.report.html.chart import chart, of_curve
from unstuck.report.html.markup import Html, tag
from unstuck.report.text import WITNESSES, number

CODE_WIDTH = 110
STYLES = {"label": "label-text", "mark": "marked", "other": "other"}
DIFF = {"+": "added", "-": "removed", "@": "hunk"}


def heading_of(diagnosis: Diagnosis) -> Html:
    """Its name and what is true."""
    lead, loud = diagnosis.lead, diagnosis.severity.value
    likely = ", likely" if diagnosis.confidence is Confidence.LIKELY else ""
    return tag("h3", tag("span", f"{loud}{likely}", class_=f"chip {loud}"), f"{lead.code} {lead.name}: {lead.message}")


def diagnosis_parts(done: Investigation, diagnosis: Diagnosis) -> list[Html]:
    """Everything below its heading, apart from the proof."""
    lead = diagnosis.lead
    sources = Sources(done.result.changed, done.result.texts)
    parts = [_quoted(diagnosis, sources)] if lead.place else []
    parts += [_evidence(diagnosis.evidence)] if diagnosis.evidence else []
    seen = ", ".join(WITNESSES[witness] for witness in diagnosis.witnesses)
    parts += [tag("h4", "Why it matters"), tag("p", lead.cause), tag("p", f"Seen {seen}.", class_="quiet")]
    parts += [tag("h4", "Change"), *_paragraphs(lead.fix.text)]
    edits = next((finding.fix.edits for finding in (lead, *diagnosis.findings) if finding.fix.edits), ())
    changed = any(edit.path in done.result.changed for edit in edits)
    difference = "" if changed else unified_diff(edits)
    parts += [_coloured(difference)] if difference else []
    if lead.verify is not None:
        parts += [tag("p", "Then ", tag("code", lead.verify.command), f" should show {lead.verify.expect}.")]
    return [*parts, tag("p", "More: ", tag("code", lead.docs), class_="quiet")] if lead.docs else parts


def _paragraphs(text: str) -> list[Html]:
    """Sentences as a paragraph, indented lines as code."""
    parts: list[Html] = []
    code: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith((" ", "\t")):
            code.append(line)
            continue
        parts += [tag("pre", "\n".join(code), tabindex=0)] if code else []
        code = []
        parts += [tag("p", line)] if line else []
    return parts


def _quoted(diagnosis: Diagnosis, sources: Sources) -> Html:
    assert diagnosis.lead.place is not None
    lines = excerpt(diagnosis.lead.place, diagnosis.lead.related, sources, CODE_WIDTH)
    spans = [[tag("span", text, class_=STYLES.get(style)) for text, style in line] + ["\n"] for line in lines]
    return tag("pre", spans, tabindex=0, aria_label=f"the lines at {diagnosis.lead.place}")


def _evidence(evidence: Sequence[Evidence]) -> Html:
    return tag("dl", [(tag("dt", item.name), tag("dd", evidence_words(item))) for item in evidence])


def evidence_words(item: Evidence) -> str:
    """Its value with its unit, its threshold and its place."""
    value = ", ".join(item.value) if isinstance(item.value, list) else f"{_scalar(item.value)} {item.unit}".rstrip()
    limit = f" (threshold {_scalar(item.threshold)})" if item.threshold is not None else ""
    return value + limit + (f" at {item.place}" if item.place else "")


def _scalar(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else value


def _coloured(difference: str) -> Html:
    rows = difference.splitlines()
    heads = ("--- ", "+++ ")
    spans = [tag("span", row, class_="hunk" if row.startswith(heads) else DIFF.get(row[:1])) for row in rows]
    return tag("pre", [[span, "\n"] for span in spans], tabindex=0, aria_label="the change as a unified diff")


def proof_parts(proof: Proof) -> list[Html]:
    """What became of it when its remedy was tried, with the curves of each seed side by side."""
    good = proof.verdict == ProofVerdict.CONFIRMED
    way = "With the change above" if proof.is_edit else f"With {proof.remedy}"
    words = f"{way}: {proof.sentence}"
    parts = [
        tag("h4", "Proof"),
        tag("p", tag("span", proof.verdict, class_=f"chip {'good' if good else 'quiet'}"), words),
    ]
    if proof.interval is not None and proof.difference is not None:
        low, high = proof.interval
        change = f"The loss changes by {proof.difference:+.1%} (95 % interval {low:+.1%} to {high:+.1%})."
        parts.append(tag("p", change, class_="quiet"))
    heights = [y for pair in proof.pairs for curve in (pair.without, pair.remedied) for y in curve.finite]
    charts = [
        chart(
            [
                of_curve(f"without ({pair.without_status})", pair.without, 0),
                of_curve(f"with ({pair.remedied_status})", pair.remedied, 1),
            ],
            f"Seed {pair.seed}: without and with",
            y_range=(min(heights), max(heights)) if heights else (),
        )
        for pair in proof.pairs
    ]
    return [*parts, tag("div", charts, class_="charts")] if charts else parts
