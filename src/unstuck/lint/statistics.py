"""`--statistics`: the number of findings per rule."""

from __future__ import annotations

import msgspec

from unstuck.findings import FORMAT_VERSION, Severity
from unstuck.findings.result import Result
from unstuck.report.text import count


class Count(msgspec.Struct, frozen=True):
    """The number of findings of one rule at one severity."""

    code: str
    name: str
    severity: str
    count: int


def counts(result: Result) -> list[Count]:
    """The counts, most frequent first."""
    seen: dict[tuple[str, str, Severity], int] = {}
    for diagnosis in result.verdict.diagnoses:
        key = (diagnosis.lead.code, diagnosis.lead.name, diagnosis.severity)
        seen[key] = seen.get(key, 0) + 1
    rows = [Count(code, name, severity.value, count) for (code, name, severity), count in seen.items()]
    return sorted(rows, key=lambda row: (-row.count, row.code, row.severity))


def render(result: Result, output_format: str) -> str:
    """The counts as a table, or as JSON."""
    rows = counts(result)
    ignored = len(result.verdict.ignored)
    if output_format == "json":
        from unstuck.report import json

        return json.encode(
            {
                "version": FORMAT_VERSION,
                "command": "lint",
                "files": result.files,
                "ignored": ignored,
                "statistics": rows,
                "errors": [{"message": problem.message} for problem in result.errors],
            }
        )
    width = max((len(str(row.count)) for row in rows), default=1)
    table = "".join(f"{row.count:>{width}}  {row.code:<4} {row.severity:<8} {row.name}\n" for row in rows)
    total = count(sum(row.count for row in rows), "finding")
    silenced = f", {ignored} ignored" if ignored else ""
    return f"{table}{total} in {count(result.files, 'file')}{silenced}\n"
