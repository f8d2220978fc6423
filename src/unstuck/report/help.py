"""A rule's page, as a person who has just met the rule wants to read it."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # `unstuck explain` starts without `typing`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unstuck.rule import Rule

MARK = re.compile(r"  # finding: .*$")
RUN_MARK = re.compile(r"  # (not )?in run$")
EXPLAINED = ("What happens", "Why", "Fix")


def shortened(page: str) -> str:
    """The page with the first example of each section only."""
    lines: list[str] = []
    examples = left_out = 0
    fenced = False
    for line in page.splitlines():
        if line.startswith("## "):
            examples = 0
            lines += [""] if lines[-1] else []
        is_fence = line.startswith("```")
        fenced ^= is_fence
        examples += is_fence and fenced
        left_out += is_fence and fenced and examples > 1
        if examples == 0 or (examples == 1 and (fenced or is_fence)):
            lines.append(RUN_MARK.sub("", MARK.sub("  # <-- here", line)))
    code = page.split()[1]
    more = f"\n{left_out} more example{'s' * (left_out != 1)}: unstuck explain --all {code}\n" if left_out else ""
    return "\n".join(lines) + "\n" + more


def variant_first(page: str, variant: str, titles: Callable[[], Mapping[str, str]]) -> str:
    """The page with what it says of one variant moved to its top, or the variant's title where it says nothing."""
    found = re.search(rf"^### {re.escape(variant)}\n(.*?)(?=^##)", page, flags=re.MULTILINE | re.DOTALL)
    is_listed = found is not None and page.rfind("\n## ", 0, found.start()) == page.find("\n## Variants\n")
    if found is None or not is_listed:
        text = f"{titles()[variant]}."
        text = text[:1].upper() + text[1:]
    else:
        text = found.group(1).strip()
        page = page[: found.start()] + page[found.end() :]
    title, _, rest = page.partition("\n")
    return f"{title}\n\n## {variant}\n\n{text}\n{rest}"


def markdown_of(rule: Rule) -> str:
    """The page as Markdown with one example of each kind; the title of a rule that has no page."""
    try:
        return shortened(rule.page.read_text(encoding="utf-8"))
    except OSError:
        return f"# {rule.code} {rule.name}: {rule.title}\n"


def sections_of(rule: Rule) -> dict[str, str]:
    """What the page says of what happens, why, and what to do, without the examples."""
    from unstuck.page import PageError, read_page

    try:
        sections = read_page(rule.page).sections
    except PageError:
        return {}
    return {heading: sections[heading] for heading in EXPLAINED if sections.get(heading)}
