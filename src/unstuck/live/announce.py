"""One line on stderr for what cannot wait until the end of a run."""

from __future__ import annotations

from typing import TextIO

from unstuck.findings import Diagnosis, Severity
from unstuck.report.terminal import Line, show


def announce(diagnosis: Diagnosis, stream: TextIO) -> None:
    """Write an error to the stream; what is less than an error waits for the report."""
    if diagnosis.severity is not Severity.ERROR:
        return
    lead = diagnosis.lead
    where = f" ({lead.place})" if lead.place else ""
    line: Line = [("unstuck: ", ""), (f"error {lead.code} {lead.name}:", "error"), (f" {lead.message}{where}", "")]
    show([[], line] if stream.isatty() else [line], stream)  # a progress bar may stand on the line
    stream.flush()
