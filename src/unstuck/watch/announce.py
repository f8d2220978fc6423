"""One line on stderr for what cannot wait until the end of a run, and one if the whole run does not show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from unstuck.findings import Diagnosis, Severity
from unstuck.report.terminal import Line, show
from unstuck.watch.monitor import matter

ARTICLES = {Severity.WARNING: "a warning", Severity.ADVICE: "advice"}


def announce(diagnosis: Diagnosis, stream: TextIO) -> None:
    """Write an error to the stream; what is less than an error waits for the report."""
    if diagnosis.severity is not Severity.ERROR:
        return
    lead = diagnosis.lead
    where = f" ({lead.place})" if lead.place else ""
    line: Line = [("unstuck: ", ""), (f"error {lead.code} {lead.name}:", "error"), (f" {lead.message}{where}", "")]
    show([[], line] if stream.isatty() else [line], stream)  # a progress bar may be on the line
    stream.flush()


def retractions(announced: Iterable[tuple[Diagnosis, int]], final: Sequence[Diagnosis]) -> Iterator[str]:
    """A sentence for each error that was announced and that the whole run no longer shows as one."""
    last = {matter(finding): diagnosis.severity for diagnosis in final for finding in diagnosis.findings}
    for diagnosis, steps in announced:
        now = next((last[matter(finding)] for finding in diagnosis.findings if matter(finding) in last), None)
        if diagnosis.severity is not Severity.ERROR or now is Severity.ERROR:
            continue
        name = f"{diagnosis.lead.code} {diagnosis.lead.name}"
        judged = f"is {ARTICLES[now]}" if now is not None else "is not found any more"
        yield (
            f"{name} was announced as an error after {steps} steps. Over the whole run it {judged}, because what came "
            "later counts too."
        )
