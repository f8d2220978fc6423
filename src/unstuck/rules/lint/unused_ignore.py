"""U01: an ignore comment that silences nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unstuck.events import Place
from unstuck.findings import Confidence, Edit, Finding, Fix, Severity, Subject, Witness
from unstuck.rule import Rule, all_rules, find_variant, nearest, rules_named
from unstuck.source import Script
from unstuck.source.documents.comments import IgnoreComment, ignore_comments

rule = Rule("U01", "unused-ignore", "an ignore comment that silences nothing", Severity.ADVICE)

CAUSE = "A comment that silences nothing today will hide the next real finding on its line."


@rule.in_source
def seen_in_source(script: Script) -> Iterator[Finding]:
    """Every code of an ignore comment that silences nothing."""
    comments = ignore_comments(script.text)
    if not comments:
        return
    found = _found_by_others(script)
    for comment in comments:
        codes = found.get(comment.line, set())
        if comment.mistyped:
            yield _without_brackets(script, comment, codes)
        elif comment.words is None:
            if not codes and script.training_loops:
                yield _unused(script, comment, "", ())
        else:
            for word in comment.words:
                if not _is_needed(word, codes, script):
                    yield _unused(script, comment, word, rules_named(word))


def _is_needed(word: str, codes: set[str], script: Script) -> bool:
    meant = rules_named(word)
    visible = [other for other in meant if other.source] or meant
    return any(not _is_idle(other, _id_of(other, word), codes, script) for other in visible)


def _id_of(meant: Rule, word: str) -> str:
    """`O04`, or `O04/never-cleared` where the word names a variant."""
    found = find_variant(word)
    return f"{meant.code}/{found[1]}" if found and found[1] else meant.code


def _is_idle(meant: Rule, name: str, codes: set[str], script: Script) -> bool:
    # The effect of a module without a loop shows in the scripts that import it.
    return meant is not rule and meant.source is not None and name not in codes and bool(script.training_loops)


def _found_by_others(script: Script) -> dict[int, set[str]]:
    """Findings of the other rules, by the lines on which a comment would silence them."""
    found: dict[int, set[str]] = {}
    for other in all_rules():
        for finding in other.source(script) if other.source and other is not rule else ():
            place = finding.place
            if place is not None:
                for line in (place.line, place.end_line or place.line):
                    found.setdefault(line, set()).update((finding.code, finding.id))
    return found


def _unused(script: Script, comment: IgnoreComment, word: str, meant: Sequence[Rule]) -> Finding:
    shown = f"ignore[{word}]" if word else "ignore"
    message = f"`# unstuck: {shown}` silences nothing on this line."
    if word and not meant:
        return _misspelled(script, comment, word, shown)
    alone = all(other.witnesses == (Witness.SOURCE,) for other in meant)
    but = "" if alone else ", unless `unstuck run` needs it here"
    return rule.finding(
        message,
        cause=CAUSE,
        fix=Fix(f"Remove it{but}.", (_removal(script, comment, word),), "safe" if alone else "unsafe"),
        subject=Subject("comment", _id_of(meant[0], word) if len(meant) == 1 else word.upper()),
        place=_place(script, comment),
        confidence=Confidence.CERTAIN if alone else Confidence.LIKELY,
    )


def _misspelled(script: Script, comment: IgnoreComment, word: str, shown: str) -> Finding:
    close, place = nearest(word), _place(script, comment)
    change = Fix("Remove it.", (_removal(script, comment, word),), "safe")
    if close:
        right = f"# unstuck: ignore[{close}]"
        edit = Edit(script.path, place.line, place.column, place.line, place.end_column, right)
        change = Fix(f"Write `{right}`.", (edit,) if len(comment.words or ()) == 1 else (), "unsafe")
    return rule.finding(
        f"`# unstuck: {shown}` does not name a rule" + (f"; did you mean {close}?" if close else "."),
        cause="A comment that names no rule silences nothing.",
        fix=change,
        subject=Subject("comment", word.upper()),
        place=place,
    )


def _without_brackets(script: Script, comment: IgnoreComment, codes: set[str]) -> Finding:
    place = _place(script, comment)
    shown = script.lines[comment.line - 1][comment.column - 1 : comment.end_column - 1]
    known = [word for word in comment.words or () if rules_named(word)]
    needed = [word for word in known if _is_needed(word, codes, script)]
    right = f"ignore[{', '.join(needed or known or ['O12'])}]"
    change = Fix(f"Write `# unstuck: {right}`; put a remark after another #.")
    if needed:
        new = Edit(script.path, place.line, place.column, place.line, place.end_column, f"# unstuck: {right}")
        change = Fix(change.text, (new,), "safe")
    elif known:
        change = Fix("Remove it; lint finds nothing to ignore here.", (_removal(script, comment),), "unsafe")
    such = "" if known else "such as "
    return rule.finding(
        f"`{shown}` silences nothing because the brackets are missing: write {such}{right}.",
        cause="Read as a comment for all rules, it would hide more than intended.",
        fix=change,
        subject=Subject("comment", shown),
        place=place,
    )


def _place(script: Script, comment: IgnoreComment) -> Place:
    return Place(script.path, comment.line, comment.column, comment.line, comment.end_column)


def _removal(script: Script, comment: IgnoreComment, word: str | None = None) -> Edit:
    """Remove the comment with the spaces before it, or only one code of several."""
    text = script.lines[comment.line - 1]
    others = [other for other in comment.words or () if word is not None and other != word]
    if others:
        new = f"# unstuck: ignore[{', '.join(others)}]"
        return Edit(script.path, comment.line, comment.column, comment.line, comment.end_column, new)
    start = len(text[: comment.column - 1].rstrip()) + 1
    return Edit(script.path, comment.line, start, comment.line, comment.end_column, "")
