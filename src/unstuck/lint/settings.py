"""Which rules to check and where: `[tool.unstuck]` of the nearest pyproject.toml, and the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from unstuck.findings import Finding, Severity
from unstuck.judge import spelled
from unstuck.lint.patterns import Patterns, relative
from unstuck.regular import read_regular
from unstuck.rule import Rule, find_variant, nearest, rules_named, source_rules
from unstuck.source.documents.files import LARGEST_FILE

FAIL_ON = ("error", "warning", "advice", "never")


class SettingsError(Exception):
    """Invalid settings. The text is one sentence: where, what, what to do."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a lint depends on besides the files."""

    select: tuple[str, ...] | None = None
    """Codes of the rules to look for, or variants such as `O04/never-cleared`; None for all."""
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    severity: dict[str, Severity] = {}
    paths: tuple[str, ...] = ()
    """What to lint without arguments."""
    exclude: tuple[str, ...] = ()
    fail_on: str = "error"
    root: str = ""
    """The folder that patterns are relative to; empty for the current directory."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules to ask."""
        wanted = None if self.select is None else {word.partition("/")[0] for word in self.select}
        chosen = [rule for rule in source_rules() if wanted is None or rule.code in wanted]
        return tuple(rule for rule in chosen if rule.code not in self.ignore)

    def wants(self, lead: Finding) -> bool:
        """Do `select` and `ignore` leave this variant of its rule?"""
        words = {lead.code, lead.id}
        return (self.select is None or bool(words & {*self.select})) and not words & {*self.ignore}

    def ignored_in(self, path: str) -> frozenset[str]:
        """Codes that `per-file-ignores` silences in this file."""
        inside = relative(os.path.abspath(path), os.path.abspath(self.root or "."))
        matching = (codes for pattern, codes in self.per_file_ignores if Patterns([pattern]).covers(inside))
        return frozenset(code for codes in matching for code in codes)


def settings_for(
    paths: Sequence[str] = (),
    *,
    config: str | None = None,
    isolated: bool = False,
    select: str | None = None,
    ignore: str | None = None,
) -> Settings:
    """The settings that apply to these paths.

    `select` and `ignore` come from the command line, separated by commas: `select` replaces `select` and `ignore` of
    the file, and `ignore` is added to them.
    """
    file = Path(config) if config else None if isolated else find_settings_file(paths)
    settings = read_settings(file) if file else Settings()
    if select is not None:
        settings = msgspec.structs.replace(settings, select=_codes(_words(select)), ignore=())
    if ignore is not None:
        settings = msgspec.structs.replace(settings, ignore=(*settings.ignore, *_codes(_words(ignore))))
    if not settings.rules:
        raise SettingsError(
            "--select and --ignore leave no rule to check; name at least one, such as --select O12."
            if select is not None or ignore is not None or file is None
            else f"{spelled(str(file))}: select and ignore leave no rule to check; name at least one, such as O12."
        )
    return settings


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word.strip()]


def find_settings_file(paths: Sequence[str]) -> Path | None:
    """The nearest pyproject.toml with a `[tool.unstuck]` table, in or above the common folder of the paths."""
    whole = [os.path.abspath(path) for path in paths if path != "-"] or [os.getcwd()]
    try:
        start = Path(os.path.commonpath(whole))
    except ValueError:  # on different drives
        start = Path.cwd()
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if _table_in(file, required=False) is not None:
            return file
    return None


def read_settings(file: Path) -> Settings:
    """The `[tool.unstuck]` table of a file, or a SettingsError that names the file and the key."""
    table = _table_in(file, required=True)
    reading = _Reading(spelled(str(file)))
    values: dict[str, Any] = {"root": str(Path(os.path.abspath(file)).parent)}
    for key, value in (table or {}).items():
        read = KEYS[reading.known(key, KEYS, "key")]
        values[key.replace("-", "_")] = read(reading, key, value)
    root = values["root"]
    values["paths"] = tuple(spelled(os.path.join(root, path)) for path in values.get("paths", ()))
    return Settings(**values)


def _table_in(file: Path, *, required: bool) -> dict[str, Any] | None:
    try:
        raw = read_regular(file, LARGEST_FILE)
    except OSError as problem:
        if required:
            raise SettingsError(f"cannot read {file} ({problem.strerror}); check the path of --config.") from None
        return None
    if b"unstuck" not in raw and not required:
        return None
    import tomllib

    shown = spelled(str(file))
    try:
        document = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"{shown} is not valid TOML ({problem}); correct it, or use --isolated.") from None
    tool = document.get("tool")
    table = tool.get("unstuck") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise SettingsError(f"{shown}: tool.unstuck must be a table, not {_kind(table)}.")
    if table is None and required:
        raise SettingsError(f"{shown} has no [tool.unstuck] table; add one, or name another file.")
    return table


class _Reading:
    """Converts the values of one file to settings, and reports invalid ones."""

    def __init__(self, file: str) -> None:
        self._file = file

    def refuse(self, key: str, why: str) -> SettingsError:
        return SettingsError(f"{self._file}: [tool.unstuck] {key}: {why}")

    def known(self, word: str, words: Iterable[str], what: str) -> str:
        if word in words:
            return word
        import difflib

        close = difflib.get_close_matches(str(word).replace("_", "-"), list(words), 1)
        hint = f"did you mean {close[0]!r}?" if close else f"the {what}s are {', '.join(words)}."
        raise SettingsError(f"{self._file}: [tool.unstuck] has no {what} {word!r}; {hint}")

    def texts(self, key: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(
                key, f"must be a list of strings such as [{EXAMPLES.get(key, RULES)}], not {_kind(value)}."
            )
        return tuple(value)

    def codes(self, key: str, value: object) -> tuple[str, ...]:
        words = self.texts(key, value)
        try:
            return _codes(words)
        except SettingsError as error:
            raise self.refuse(key, str(error)) from None

    def table(self, key: str, value: object) -> Mapping[str, object]:
        if not isinstance(value, dict):
            raise self.refuse(key, f"must be a table such as {{ {EXAMPLES[key]} }}, not {_kind(value)}.")
        return value

    def per_file(self, key: str, value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
        table = self.table(key, value)
        return tuple((pattern, self.codes(f"{key} {pattern!r}", words)) for pattern, words in table.items())

    def severities(self, key: str, value: object) -> dict[str, Severity]:
        levels = [severity.value for severity in Severity]
        chosen: dict[str, Severity] = {}
        for word, level in self.table(key, value).items():
            if level not in levels:
                raise self.refuse(key, f"{level!r} for {word} is not a severity; use one of {', '.join(levels)}.")
            chosen.update(dict.fromkeys(self.codes(key, [word]), Severity(level)))
        return chosen

    def fail_on(self, key: str, value: object) -> str:
        if value not in FAIL_ON:
            raise self.refuse(key, f"must be one of {', '.join(FAIL_ON)}, not {value!r}.")
        return str(value)


KEYS: dict[str, Callable[[_Reading, str, object], Any]] = {
    "select": _Reading.codes,
    "ignore": _Reading.codes,
    "per-file-ignores": _Reading.per_file,
    "severity": _Reading.severities,
    "paths": _Reading.texts,
    "exclude": _Reading.texts,
    "fail-on": _Reading.fail_on,
}
RULES = '"O12", "G"'
EXAMPLES = {
    "per-file-ignores": '"tests/" = ["O12"]',
    "severity": 'O12 = "warning"',
    "paths": '"src"',
    "exclude": '"experiments/"',
}


def _kind(value: object) -> str:
    names = {
        str: "a string",
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "a table",
    }
    if isinstance(value, list):
        return "a list with " + " and ".join(sorted({_kind(item) for item in value if not isinstance(item, str)}))
    return names.get(type(value), f"a {type(value).__name__}")


def _codes(words: Iterable[str]) -> tuple[str, ...]:
    """The codes meant by codes, names, variants and beginnings of codes such as `G` or `O1`."""
    return tuple(dict.fromkeys(code for word in words for code in _meant(word.strip())))


def _meant(word: str) -> list[str]:
    found = find_variant(word)
    if found and found[1]:
        return [f"{found[0].code}/{found[1]}"]
    codes = [rule.code for rule in rules_named(word)]
    if not codes:
        close = nearest(word)
        hint = f"did you mean {close}?" if close else "`unstuck rules` lists them."
        raise SettingsError(f"there is no rule {word!r}; {hint}")
    return codes
