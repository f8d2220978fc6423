"""Parquet: the table of the CSV with its types, a tenth as large."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstuck.exports import Kind
from unstuck.report.terminal import encodable
from unstuck.watch.series import Row, rows

if TYPE_CHECKING:
    from unstuck.record import Record

KIND = Kind.FILE
NEEDS, EXTRA = "pyarrow", "parquet"


def content(record: Record, path: Path) -> bytes:
    """Names are repeated in every row, so they are written as numbers of a dictionary."""
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    table = sorted(rows(record), key=lambda row: row.step)
    names = arrow.dictionary(arrow.int32(), arrow.string())
    kinds = {"step": arrow.int64(), "gauge": names, "layer": names, "value": arrow.float64(), "optimizer": names}
    columns = {
        name: [encodable(cell) if isinstance(cell, str) else cell for cell in (getattr(row, name) for row in table)]
        for name in Row._fields
    }
    about = {"unstuck.run": path.name, "unstuck.script": encodable(record.started.script)}
    schema = arrow.schema([(name, kinds[name]) for name in Row._fields], metadata=about)
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(columns, schema=schema), sink)
    found: bytes = sink.getvalue().to_pybytes()
    return found
