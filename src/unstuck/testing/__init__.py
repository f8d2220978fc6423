"""`check_rule`: the contract every rule must pass, also a third party's."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unstuck.findings import Finding, Severity, Witness
from unstuck.findings.verdict import Verdict
from unstuck.judge import judge
from unstuck.page import HEADINGS, VARIANTS, Example, Page, PageError, page_name, read_page
from unstuck.record import Record, RecordError, read
from unstuck.rule import Rule, add_page, all_rules
from unstuck.source.what_ran import script_of
from unstuck.testing.runs import LONGEST_RUN, OUTPUT, TOOK_TOO_LONG, run_server

SCRIPT = "train.py"
WITH_VARIANTS = (HEADINGS[0], VARIANTS, *HEADINGS[1:])
TEMPLATE_TEXTS = frozenset(
    (
        "What the user sees: the symptom, in the words they would search for.",
        "The mechanism, in a few sentences and with numbers that were measured.",
        "What to change, as code.",
        "- The documentation, paper or issue that says so.",
    )
)
"""What `new-rule` writes into a page for its author to replace."""
_CODE = re.compile(r"[A-Z]{1,3}\d{2,3}")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def check_rule(rule: Rule) -> None:
    """Raise AssertionError, with what to change, unless the rule and its page keep every promise.

    The page's examples are its tests: a broken one is found on its marked lines by each witness of the rule,
    and no rule finds anything in a fixed one.
    """
    if not rule.page.name:
        _find_page(rule)
    check_identity(rule)
    for example in check_page(rule).examples:
        check_example(rule, example)


def _find_page(rule: Rule) -> None:
    """A rule that was imported and not loaded does not know where its page is: next to the module that defines it."""
    holding = [name for name, module in list(sys.modules.items()) if getattr(module, "rule", None) is rule]
    _expect(holding, f"rule {rule.code}: its module must call it `rule`.")
    add_page(rule, sys.modules[min(holding, key=len)])


def check_identity(rule: Rule) -> None:
    """The rule's code, name and title are well formed, its file is named after it, somebody can see it."""
    who = f"rule {rule.code}"
    _expect(_CODE.fullmatch(rule.code), f"{who}: a code is letters and digits, such as O12.")
    _expect(_NAME.fullmatch(rule.name), f"{who}: {rule.name!r} is not in kebab-case, such as double-softmax.")
    _expect(
        rule.title.strip() == rule.title != "",
        f"{who}: the title must be half a sentence, without blanks around.",
    )
    _expect(not rule.title.endswith("."), f"{who}: the title is half a sentence and has no full stop.")
    _expect(
        rule.witnesses,
        f"{who} has no witness: decorate a function with @rule.in_source, in_setup, in_run, in_surface or "
        "in_experiment.",
    )
    stem = rule.name.replace("-", "_")
    _expect(
        stem in (rule.page.stem, rule.page.parent.name),
        f"{who}: its files must be called {stem}.py and {stem}.md, or {stem}/__init__.py and {stem}/page.md.",
    )
    for variant, title in rule.variants.items():
        _expect(_NAME.fullmatch(variant), f"{who}: variant {variant!r} is not in kebab-case, such as never-cleared.")
        _expect(
            title.strip() == title != "" and not title.endswith("."),
            f"{who}: the title of variant {variant} must be half a sentence, without blanks around or a full stop.",
        )


def check_page(rule: Rule) -> Page:
    """The rule's page has every section, and an example for every witness."""
    try:
        page = read_page(rule.page)
    except PageError as error:
        raise AssertionError(str(error)) from None
    where = page_name(rule.page)
    title = f"{rule.code} {rule.name}: {rule.title}"
    _expect(page.title == title, f"{where} must begin with `# {title}`, but begins with `# {page.title}`.")
    for heading in HEADINGS:
        _expect(page.sections.get(heading), f"{where} has nothing under `## {heading}`.")
    _expect(
        tuple(page.sections) in (HEADINGS, WITH_VARIANTS),
        f"{where}: the sections must be {', '.join(HEADINGS)}, in this order; {VARIANTS} may follow {HEADINGS[0]}.",
    )
    if VARIANTS in page.sections:
        listed = ", ".join(rule.variants) or "none"
        _expect(
            set(page.variants) == set(rule.variants) and all(page.variants.values()),
            f"{where}: `## {VARIANTS}` needs a text under `### id` for each variant of the rule ({listed}).",
        )
    if any(example.lines_in_run is not None for example in page.examples):
        _expect(page.run_reason, f"{where} must say under `## Broken` why: `Without the text, a run ...`.")
    left = [text for text in page.sections.values() if text in TEMPLATE_TEXTS]
    _expect(not left, f"{where} still holds the text of the template: {left[0] if left else ''}")
    for section in ("Broken", "Fixed"):
        examples = [example for example in page.examples if example.section == section]
        _expect(examples, f"{where} has no ```python block under `## {section}`.")
        for witness in _to_be_shown(rule):
            shown = any(witness in audience(rule, example) for example in examples)
            _expect(shown, f"{where} has no example for the {witness.value} witness under `## {section}`.")
    return page


def _to_be_shown(rule: Rule) -> tuple[Witness, ...]:
    """An experiment takes long, so its examples are asked for only where nothing else sees the rule."""
    others = tuple(witness for witness in rule.witnesses if witness is not Witness.EXPERIMENT)
    return others or rule.witnesses


def check_example(rule: Rule, example: Example) -> None:
    """One example behaves as its section says, before each witness it is meant for."""
    checks = {
        Witness.SOURCE: check_source,
        Witness.SETUP: check_setup,
        Witness.RUN: check_run,
        Witness.SURFACE: check_surface,
        Witness.EXPERIMENT: check_experiment,
    }
    for witness in audience(rule, example):
        checks[witness](rule, example)


def audience(rule: Rule, example: Example) -> list[Witness]:
    """Who is to look at an example. A fixed one is shown to every rule, to catch false alarms."""
    if example.witnesses:
        return [witness for witness in Witness if witness in example.witnesses]
    scripts = [Witness.SOURCE, Witness.RUN]
    return scripts if example.section == "Fixed" else [witness for witness in scripts if witness in rule.witnesses]


def check_source(rule: Rule, example: Example) -> None:
    """Linting a broken script marks exactly its marked lines; linting a fixed one says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        from unstuck.source import read_script

        path = Path(folder) / SCRIPT
        path.write_text(example.code, encoding="utf-8")
        verdict = judge(scripts=(read_script(path),), rules={*all_rules(), rule})
    where = _where(rule, example, "lint")
    _expect_no_failures(verdict, where)
    findings = [finding for diagnosis in verdict.diagnoses for finding in diagnosis.findings]
    if example.section == "Fixed":
        _expect(not findings, f"{where} must say nothing, but says:\n{_listed(findings)}")
        return
    own = [finding for finding in findings if finding.code == rule.code]
    found = {finding.place.line for finding in own if finding.place}
    marked = _marked(rule, example, where)
    _expect(found == marked, f"{where} must mark {_lines(marked)}, but marks {_lines(found)}.\n{_listed(own)}")
    loud = [f for f in findings if f.code != rule.code and f.severity.at_least(Severity.WARNING)]
    _expect(not loud, f"{where} must find nothing else, but finds:\n{_listed(loud)}")


def check_setup(rule: Rule, example: Example) -> None:
    """`unstuck.check` on the objects of the example finds the rule, or nothing."""
    from unstuck.check.objects import check

    where = _where(rule, example, "check")
    verdict = check(**_given_by(rule, example, "objects", where)).verdict
    _expect_no_failures(verdict, where)
    _expect_found(rule, example, where, [diagnosis.lead for diagnosis in verdict.diagnoses])


def check_surface(rule: Rule, example: Example) -> None:
    """The surface of the example's loss shows the rule, at the line that defines the loss, or nothing but good."""
    from unstuck.judge import judge_surface
    from unstuck.surface.scan import surface

    where = _where(rule, example, "surface")
    seen = surface(**_given_by(rule, example, "plane", where))
    verdict = judge_surface(seen, {*all_rules(), rule})
    _expect_no_failures(verdict, where)
    good = verdict.good_news if rule.good_news else ()
    findings = [diagnosis.lead for diagnosis in (*verdict.diagnoses, *good)]
    _expect_found(rule, example, where, findings)
    if example.section == "Broken":
        found = {finding.place.line for finding in findings if finding.code == rule.code and finding.place}
        marked = _marked(rule, example, where)
        _expect(found == marked, f"{where} must name {_lines(marked)}, not {_lines(found)}:\n{_listed(findings)}")
        others = [finding for finding in findings if not example.marked_lines(finding.name)]
        loud = [finding for finding in others if finding.severity.at_least(Severity.WARNING)]
        _expect(not loud, f"{where} must show nothing that is not marked, but shows:\n{_listed(loud)}")


def check_experiment(rule: Rule, example: Example) -> None:
    """The experiment that the page names, made on the example, shows the rule, or nothing to any rule."""
    from unstuck.testing.experiments import experiment_on

    where = _where(rule, example, example.experiment or "experiment")
    _expect(example.experiment, f"{where}: name the experiment after ```python, such as experiment=overfit.")
    done = experiment_on(example.code, example.experiment, SCRIPT)
    findings = [finding for one in {*all_rules(), rule} for finding in one.findings(Witness.EXPERIMENT, done)]
    try:
        _expect_found(rule, example, where, findings)
    except AssertionError as error:
        raise AssertionError(
            f"{error}\n  {done.verdict}: {done.sentence} ({done.method}) {list(done.caveats)}"
        ) from None


def _given_by(rule: Rule, example: Example, function: str, where: str) -> dict[str, Any]:
    """What the example's function of this name returns: the arguments of the call that is tested."""
    # A page is our own text, shipped with the rule: running it is running a test.
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(example.code, f"<{page_name(rule.page)} ({example.section})>", "exec"), namespace)
    _expect(function in namespace, f"{where}: the block must define `{function}()`, which returns the arguments.")
    given: dict[str, Any] = namespace[function]()
    return given


def check_run(rule: Rule, example: Example) -> None:
    """Running a broken script finds the rule at a marked line; running a fixed one finds nothing."""
    where = _where(rule, example, "run")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        record = _record_of(example.code, where)
        script = script_of(record)
        verdict = judge(scripts=(script,) if script else (), record=record, rules={*all_rules(), rule})
        Path(SCRIPT).unlink()  # a rule may look for the text by itself
        alone = judge(record=record, rules={*all_rules(), rule})
    _expect_no_failures(verdict, where)
    _expect((record.crash is not None) == example.crashes, f"{where} {_crash_sentence(record)}")
    good = verdict.good_news if rule.good_news else ()
    spoken = [diagnosis.lead for diagnosis in (*verdict.diagnoses, *good)]
    _expect_found(rule, example, where, spoken)
    if example.section == "Broken":
        found = {place.line for finding in spoken if finding.code == rule.code for place in finding.places}
        marked = _marked(rule, example, where)
        _expect(found & marked, f"{where} must name {_lines(marked)}, not {_lines(found)}:\n{_listed(spoken)}")
        _check_alone(rule, example, alone, where)


def _check_alone(rule: Rule, example: Example, verdict: Verdict, where: str) -> None:
    """The record names a marked line without the help of the text, or the line that the page declares for it."""
    spoken = [diagnosis.lead for diagnosis in (*verdict.diagnoses, *(verdict.good_news if rule.good_news else ()))]
    own = [finding for finding in spoken if finding.code == rule.code]
    found = {finding.place.line for finding in own if finding.place}
    marked, declared = example.marked_lines(rule.name), example.lines_in_run
    hint = "correct the rule, or end the line that it names with `# in run` (or any line with `# not in run`)"
    right = found == declared if declared is not None else found & marked
    wanted = _lines(marked if declared is None else declared)
    _expect(right, f"{where}: the record alone must name {wanted}, not {_lines(found)}; {hint}.\n{_listed(own)}")


def _record_of(code: str, where: str) -> Record:
    """Run a script under watch, in this folder and a process of its own."""
    Path(SCRIPT).write_text(code, encoding="utf-8")
    exit_code = run_server().run(os.getcwd(), ["run", "--fail-on", "never", SCRIPT])
    _expect(exit_code != TOOK_TOO_LONG, f"{where} ran for {LONGEST_RUN} s; an example takes seconds.")
    try:
        return read(next(Path(".unstuck/runs").iterdir()))
    except (OSError, StopIteration, RecordError):
        said = Path(OUTPUT).read_text(encoding="utf-8")
        raise AssertionError(f"{where} left no record (exit code {exit_code}):\n{said}") from None


def _crash_sentence(record: Record) -> str:
    crash = record.crash
    if crash is None:
        return "was to crash (run=crash), but did not."
    return f"crashed: {crash.kind}: {crash.message}. Write run=crash after ```python if that is meant."


def _expect_found(rule: Rule, example: Example, where: str, findings: list[Finding]) -> None:
    if example.section == "Fixed":
        _expect(not findings, f"{where} must find nothing, but finds:\n{_listed(findings)}")
    else:
        codes = {finding.code for finding in findings}
        _expect(
            rule.code in codes,
            f"{where} must find {rule.code}, but finds:\n{_listed(findings) or '  nothing'}",
        )


def _expect_no_failures(verdict: Verdict, where: str) -> None:
    _expect(not verdict.failures, f"{where} had trouble: {'; '.join(verdict.failures)}")


def _marked(rule: Rule, example: Example, where: str) -> set[int]:
    marked = example.marked_lines(rule.name)
    _expect(marked, f"{where}: mark the guilty line of the broken example with `# finding: {rule.name}`.")
    return marked


def _where(rule: Rule, example: Example, verb: str) -> str:
    variant = f" ({example.variant})" if example.variant else ""
    return f"{page_name(rule.page)}:{example.line}: {verb} on the {example.section.lower()} example{variant}"


def _lines(numbers: Iterable[int]) -> str:
    known = sorted(numbers)
    return f"line {', '.join(map(str, known))} of the block" if known else "no line"


def _listed(findings: Iterable[Finding]) -> str:
    return "\n".join(f"  line {f.place.line if f.place else '?'}: {f.code} {f.name}: {f.message}" for f in findings)


def _expect(condition: object, explanation: str) -> None:
    if not condition:
        raise AssertionError(explanation)
