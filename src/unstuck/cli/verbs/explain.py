"""`unstuck explain RULE`: show the page of one rule."""

from __future__ import annotations

import os
import sys

from unstuck.cli import common
from unstuck.report.help import shortened, variant_first
from unstuck.report.terminal import columns_of, show_paged, wants_colour

TYPE_CHECKING = False  # see unstuck.cli.common
if TYPE_CHECKING:
    from collections.abc import Sequence

HELP = "show what a rule means, why it matters and how to fix it"
GROUP = "more"


def main(arguments: Sequence[str]) -> int:
    """Print a rule's page: rendered in a terminal, as Markdown elsewhere."""
    parser = common.verb_parser("explain", "Show what a rule means, why it matters and how to fix it.", epilog="")
    parser.add_argument(
        "rule",
        metavar="RULE",
        help="a code such as O12, a name such as double-softmax, or one variant of a rule such as O04/never-cleared",
    )
    parser.add_argument("--all", action="store_true", help="show all examples, not only the first of each kind")
    common.add_format_option(parser)
    options = parser.parse_args(arguments)
    word, _, variant = options.rule.partition("/")
    page = _page_of(word) or common.rule_named(word).page.read_text(encoding="utf-8")
    if variant:
        page = variant_first(
            page, variant.strip().lower().replace("_", "-"), lambda: common.rule_named(options.rule).variants
        )
    if options.format == "json":
        from unstuck.report import json

        sys.stdout.write(json.encode(json.rule_document(common.rule_named(options.rule), page)))
        return common.CLEAN
    page = page if options.all else shortened(page)
    if wants_colour(sys.stdout):
        from rich.console import Console
        from rich.markdown import Markdown

        width = min(columns_of(sys.stdout), 100)
        console = Console(width=width, force_terminal=True)
        with console.capture() as rendered:
            console.print(Markdown(page, code_theme="ansi_dark"))
        show_paged(rendered.get(), sys.stdout)
    else:
        common.print_to_stdout(page)
    return common.CLEAN


def _page_of(word: str) -> str | None:
    """The page whose first line names this rule, found without loading any rule."""
    name_or_code = word.strip().lower().replace("_", "-")
    rules = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "rules")
    for folder, _, files in os.walk(rules):
        for name in files:
            if name.endswith(".md"):
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    first = file.readline()
                    if name_or_code in first.removeprefix("# ").partition(":")[0].lower().split():
                        return first + file.read()
    return None
