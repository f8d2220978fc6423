"""`unstuck explain CODE`: read about one pitfall."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from unstuck.cli import common
from unstuck.report.help import shortened, variant_first
from unstuck.report.terminal import columns_of, wants_colour


def main(arguments: Sequence[str]) -> int:
    """Print a rule's page: rendered in a terminal, as Markdown elsewhere."""
    parser = common.verb_parser("explain", "Read what a pitfall is, why it hurts, and how to fix it.", epilog="")
    parser.add_argument(
        "rule",
        metavar="RULE",
        help="a code such as O12, a name such as double-softmax, or one variant of a rule such as O04/never-cleared",
    )
    parser.add_argument("--all", action="store_true", help="all examples, not only the first broken and fixed one")
    common.add_format_option(parser)
    options = parser.parse_args(arguments)
    word, _, variant = options.rule.partition("/")
    path = _page_of(word) or common.rule_named(word).page
    page = path.read_text(encoding="utf-8")
    if variant:
        page = variant_first(
            page, variant.strip().lower().replace("_", "-"), lambda: common.rule_named(options.rule).variants
        )
    if not options.all and options.format == "text":
        page = shortened(page)
    if options.format == "json":
        from unstuck.report import json

        sys.stdout.write(json.encode(json.rule_document(common.rule_named(options.rule), page)))
    elif wants_colour(sys.stdout):
        _render(page)
    else:
        common.print_to_stdout(page)
    return common.CLEAN


def _page_of(word: str) -> Path | None:
    """The page whose first line names this rule, found without loading the rules themselves."""
    wanted = word.strip().lower().replace("_", "-")
    for path in (Path(__file__).parents[2] / "rules").rglob("*.md"):
        with path.open(encoding="utf-8") as file:
            code, name = file.readline().removeprefix("# ").partition(":")[0].lower().split()
        if wanted in (code, name):
            return path
    return None


def _render(page: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    width = min(columns_of(sys.stdout), 100)
    Console(file=sys.stdout, width=width).print(Markdown(page, code_theme="ansi_dark"))
