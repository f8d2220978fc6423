"""The report of `unstuck diagnose`, or of a run, as one page that needs nothing else: no network, no other file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from unstuck.findings import Diagnosis, Severity
from unstuck.findings.investigation import Investigation
from unstuck.findings.results import ProofVerdict
from unstuck.report.html.chart import chart, of_curve
from unstuck.report.html.diagnoses import diagnosis_parts, heading_of, proof_parts
from unstuck.report.html.experiments import experiment_parts
from unstuck.report.html.markup import Html, join, tag
from unstuck.report.html.preview import preview_parts
from unstuck.report.investigation import answer, because, skipped_sentences, time_used
from unstuck.report.outcomes import outcome_sentences
from unstuck.report.text import count

__all__ = ["page"]

MOST_LINES = 4


def page(done: Investigation) -> str:
    """The whole page."""
    script = done.result.run.script if done.result.run else "training run"
    style = (files(__package__) / "page.css").read_text(encoding="utf-8")
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Nothing is loaded and nothing runs, whatever a script or a class is called.
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
        ),
        tag("title", f"unstuck {done.result.command} {script}"),
        tag("style", Html(style)),
    ]
    body = tag("body", _top(done), tag("main", _sections(done)), _bottom(done))
    return f"<!DOCTYPE html>\n{tag('html', tag('head', head), body, lang='en')}\n"


def _top(done: Investigation) -> Html:
    run = done.result.run
    command = f"unstuck {done.result.command} "
    parts = [tag("p", command, class_="crumb")]
    if run is not None:
        parts = [tag("p", command, tag("code", " ".join([run.script, *run.arguments])), class_="crumb")]
    parts.append(tag("h1", answer(done)))
    if run is not None:
        crashed = f" and crashed: {run.crash.kind}" if run.crash is not None else ""
        parts.append(tag("p", f"The script was watched for {count(run.steps, run.step_name)}{crashed}."))
    parts += [tag("p", sentence) for sentence in outcome_sentences(done.result.verdict)]
    return tag("header", parts)


def _sections(done: Investigation) -> list[Html]:
    diagnoses = done.result.verdict.diagnoses
    principal = done.principal
    others = [diagnosis for diagnosis in diagnoses if diagnosis is not principal]
    return [
        _answer(done, principal),
        _section("Also found", [_other(done, diagnosis) for diagnosis in others]),
        _section("Experiments", [part for one in done.experiments for part in experiment_parts(one)]),
        _section("Data on the table", _data(done)),
        _section("Ruled out", _list(done.ruled_out)),
        _section("Not done", _list(skipped_sentences(done))),
        _section("How it was measured", _method(done)),
        _section(
            "Next", [tag("div", tag("code", done.next_command), class_="next", tabindex=0)] if done.next_command else []
        ),
    ]


def _section(title: str, parts: Sequence[Html]) -> Html:
    if not parts:
        return Html()
    name = title.lower().replace(" ", "-")
    return tag("section", tag("h2", title, id_=name), parts, aria_labelledby=name)


def _list(sentences: Sequence[str]) -> list[Html]:
    return [tag("ul", [tag("li", sentence) for sentence in sentences])] if sentences else []


def _answer(done: Investigation, principal: Diagnosis | None) -> Html:
    watched = _watched(done)
    if principal is None:
        return _section("The loss as it was watched", [watched] if watched else [])
    edge = " warning-edge" if principal.severity is Severity.WARNING else ""
    parts = [heading_of(principal), *diagnosis_parts(done, principal)]
    proof = done.proof_of(principal)
    parts += proof_parts(proof) if proof is not None else []
    if proof is not None and proof.verdict == ProofVerdict.CONFIRMED:
        rest = ", ".join(done.left_over)
        parts.append(
            tag("p", f"With it, still found: {rest}." if rest else "With it, nothing else is found in the run.")
        )
    if done.together is not None:
        parts += [tag("h4", f"{done.together.code} fixed together"), *proof_parts(done.together)]
    shown_already = proof is not None and proof.pairs
    parts += [watched] if watched and not shown_already else []
    return _section("The answer", [tag("div", parts, class_=f"answer{edge}")])


def _other(done: Investigation, diagnosis: Diagnosis) -> Html:
    cause = next(
        (d for d in done.result.verdict.diagnoses if diagnosis.lead.code in d.explains and d is not diagnosis), None
    )
    parts = [heading_of(diagnosis)]
    if cause is not None:
        where = f" It shows at {diagnosis.lead.place}." if diagnosis.lead.place else ""
        parts.append(tag("p", f"Follows from {cause.lead.code}: fix that first.{where}"))
    else:
        parts += diagnosis_parts(done, diagnosis)
    proof = done.proof_of(diagnosis)
    return tag("article", parts, proof_parts(proof) if proof is not None else None)


def _watched(done: Investigation) -> Html | None:
    """The loss of the run as it is."""
    curves = done.result.run.curves if done.result.run else {}
    lines = [of_curve(name, curve, style) for style, (name, curve) in enumerate(curves.items(), 1)]
    return chart(lines[:MOST_LINES], "The run as it is") if lines else None


def _data(done: Investigation) -> list[Html]:
    run = done.result.run
    if run is None:
        return []
    return [part for preview in run.previews for part in preview_parts(preview)] or _list(run.received)


def _method(done: Investigation) -> list[Html]:
    runs = sum(len(proof.pairs) for proof in done.proofs)
    facts = [f"It took {time_used(done)}{because(done)}."] if done.budget else []
    if runs:
        facts.append(
            f"{count(runs, 'pair')} of runs for the proofs: the same script, the same seed, the same number of steps,"
            " once as it is and once with only that change."
        )
    facts += [f"{one.name}: {one.method}." for one in done.experiments]
    checked = done.result.verdict.checked
    facts += [done.protected] if done.protected else []
    facts += [f"Pitfalls checked: {' '.join(checked)}."] if checked else []
    return _list([*facts, *(f"Not checked: {sentence}" for sentence in done.result.verdict.gaps)])


def _bottom(done: Investigation) -> Html:
    from unstuck._version import __version__

    return tag(
        "footer", tag("p", join((f"unstuck {__version__}; records in ", tag("code", str(done.folder)))), class_="quiet")
    )
