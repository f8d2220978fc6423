"""`unstuck lsp`: the language server for editors."""

from __future__ import annotations

from collections.abc import Sequence

from unstuck.cli import common

HELP = "serve an editor: findings as you type, rule pages, quick fixes"
GROUP = "more"

DESCRIPTION = """Serve an editor over stdin and stdout, with the Language Server Protocol: findings as you type, the
page of a rule on hover, and quick fixes. docs/ci.md shows how to set up an editor."""
LEFT = 1
EPILOG = """exit codes:
  0   the editor ended the session
  1   the editor left without ending the session
  3   pygls is missing: pip install 'pygls>=2'
"""


def main(arguments: Sequence[str]) -> int:
    """Serve until the editor leaves."""
    parser = common.verb_parser("lsp", DESCRIPTION, epilog=EPILOG)
    parser.add_argument(
        "--stdio", action="store_true", help="use stdin and stdout (the default, and the only transport)"
    )
    parser.parse_args(arguments)
    try:
        from unstuck.integrations.lsp import serve
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        needed = "lsp needs pygls 2 or newer, which is not installed here: pip install 'pygls>=2'"
        raise common.Stop(needed, common.MISSING_DEPENDENCY) from None
    return 0 if serve() else LEFT
