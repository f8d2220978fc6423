"""The generated table of packages in docs/architecture.md: the first line of each docstring."""

from __future__ import annotations

import ast
from pathlib import Path

FILE = Path("docs/architecture.md")
BEGIN = "<!-- packages:begin -->"
END = "<!-- packages:end -->"


def package_table(package: Path) -> str:
    """Every package and every module at the top, with what it says of itself."""
    rows = ["| where | what |", "|---|---|"]
    for path in sorted([*package.rglob("__init__.py"), *package.glob("*.py")]):
        folder = path.relative_to(package).parent
        if path == package / "__init__.py" or path.stem.startswith("__main") or (path.parent / "page.md").exists():
            continue
        name = f"`{folder.as_posix()}/`" if path.name == "__init__.py" else f"`{path.name}`"
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        rows.append(f"| {name} | {' '.join(text.partition(chr(10) * 2)[0].split())} |")
    return "\n".join(dict.fromkeys(rows))
