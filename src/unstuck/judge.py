"""Feeds scripts, live objects and records to the rules, and turns what they find into a verdict."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import (
    Backward,
    BatchSeen,
    Forward,
    Gauges,
    LossCall,
    ModelSeen,
    OptimizerSeen,
    OptimizerStep,
    Place,
    Setup,
)
from unstuck.findings import (
    SHOWN_BY,
    Confidence,
    Diagnosis,
    Evidence,
    Finding,
    Severity,
    Verify,
    Witness,
    merge,
    one_per_cause,
    rank,
)
from unstuck.findings.verdict import Verdict
from unstuck.record import goals
from unstuck.record.outcome import Outcome, losses_of, outcome_of
from unstuck.record.trainings import Training, trainings_of
from unstuck.record.trend import Trend, trend_of
from unstuck.rule import Rule, all_rules
from unstuck.source.what_ran import readable_script

if TYPE_CHECKING:
    from unstuck.findings.surface import Surface
    from unstuck.record import Record
    from unstuck.source import Script


TRAINING = (ModelSeen, OptimizerSeen, Forward, LossCall, Backward, OptimizerStep, Gauges)
"""Without any of these a run shows nothing that a rule could judge."""


def judge(
    *,
    scripts: Sequence[Script] = (),
    setup: Setup | None = None,
    record: Record | None = None,
    rules: Iterable[Rule] | None = None,
) -> Verdict:
    """Ask every rule about everything given.

    With a record, the scripts are the text of that run: what only the text shows, though a run could
    have shown it, is `unconfirmed`. Each training of a run is judged by itself.
    """
    trainings = trainings_of(record) if record is not None else ()
    able = [rule for rule in (all_rules() if rules is None else rules) if rule.witnesses != (Witness.SURFACE,)]
    exhausting = (RecursionError, MemoryError) if record is None and setup is None else ()
    hearing = Hearing(tuple(rule for rule in able if not rule.good_news), exhausting=exhausting)
    praise = Hearing(tuple(rule for rule in able if rule.good_news))
    for script in scripts:
        hearing.ask(script.path, script, Witness.SOURCE)
    if setup is not None:
        hearing.ask("the given objects", setup, Witness.SETUP)
    collected = list(hearing.findings)
    if record is not None:
        what = f"the run of {record.started.script}"
        collected += _about_trainings(hearing, what, trainings)
        praise.ask(what, record, Witness.RUN)
    found = [_complete(finding, record, scripts) for finding in collected]
    causes = {rule.code: frozenset(rule.explains) for rule in hearing.rules}
    known: dict[str, Script | None] = {spelled(script.path): script for script in scripts}
    everything = _once_each(merge(found))
    ignored = [diagnosis for diagnosis in everything if _is_ignored(diagnosis, known)]
    merged = one_per_cause(diagnosis for diagnosis in everything if diagnosis not in ignored)
    unconfirmed = [d for d in merged if record is not None and _may_be_contradicted(d, hearing.rules)]
    diagnoses = tuple(rank((d for d in merged if d not in unconfirmed), causes))
    silent = _silent_rules(hearing.rules, {d.lead.code for d in diagnoses}, scripts, setup, trainings)
    return Verdict(
        diagnoses=diagnoses,
        unconfirmed=tuple(rank(unconfirmed, causes)),
        good_news=tuple(merge(_complete(finding, None) for finding in praise.findings)),
        ignored=tuple(ignored),
        trend=_trend(trainings[0]) if len(trainings) == 1 else None,
        outcomes=tuple(outcome for training in trainings for outcome in _outcomes(training)),
        scope=_scope(setup) if setup is not None else "",
        checked=tuple(rule.code for rule in hearing.rules if rule.code not in {*silent, *hearing.failed}),
        not_checked=tuple(_grouped(silent)),
        gaps=tuple(record.gaps()) if record is not None else (),
        failures=(*hearing.failures, *praise.failures),
    )


def _about_trainings(hearing: Hearing, what: str, trainings: Sequence[Training]) -> list[Finding]:
    """What the rules say of each training. What they say of several, as of the folds of a cross-validation, is said
    once."""
    if len(trainings) == 1:
        already = len(hearing.findings)
        hearing.ask(what, trainings[0].record, Witness.RUN)
        return hearing.findings[already:]
    alike: dict[tuple[object, ...], list[tuple[Finding, Training]]] = {}
    for training in trainings:
        already = len(hearing.findings)
        hearing.ask(f"{what}, {training.name}", training.record, Witness.RUN)
        for finding in hearing.findings[already:]:
            subject = (finding.subject.kind, re.sub(r"#\d+", "", finding.subject.name))
            alike.setdefault((finding.id, finding.place, *subject), []).append((finding, training))
    return [_in_trainings(group, len(trainings)) for group in alike.values()]


def _in_trainings(group: Sequence[tuple[Finding, Training]], count: int) -> Finding:
    """The most serious of the findings about one matter, with the trainings that show it."""
    lead = min(group, key=lambda each: (each[0].severity.rank, each[0].confidence.value))[0]
    shown = list({training.number: training for _, training in group}.values())
    where = Evidence("training", next(training.name for finding, training in group if finding is lead))
    share = [Evidence("trainings that show it", f"{len(shown)} of {count}")] if len(shown) > 1 else []
    return msgspec.structs.replace(lead, evidence=(*lead.evidence, where, *share))


def _outcomes(training: Training) -> tuple[Outcome, ...]:
    found = outcome_of(training.record, training=training.name, moving=True if training.is_shared else None)
    return (found,) if found is not None else ()


def _may_be_contradicted(diagnosis: Diagnosis, rules: Sequence[Rule]) -> bool:
    """Did only the text show it, though the run could have? What no run can show stands; mere advice does not."""
    lead = diagnosis.lead
    watched = any(r.run and r.code == lead.code and lead.subject.kind not in r.only_in_text for r in rules)
    return diagnosis.witnesses == (Witness.SOURCE,) and (watched or diagnosis.severity is Severity.ADVICE)


def judge_surface(surface: Surface, rules: Iterable[Rule] | None = None) -> Verdict:
    """Ask every rule that looks at a loss on its own; for good news only when nothing else was found."""
    able = [rule for rule in (all_rules() if rules is None else rules) if rule.surface]
    pitfalls = Hearing(tuple(rule for rule in able if not rule.good_news))
    pitfalls.ask(f"the surface of {surface.name}", surface, Witness.SURFACE)
    found = merge(_complete(finding, None) for finding in pitfalls.findings)
    causes = {rule.code: frozenset(rule.explains) for rule in able}
    diagnoses = tuple(rank((d for d in found if not _is_ignored(d, {})), causes))
    praise = Hearing(tuple(rule for rule in able if rule.good_news))
    if not found:
        praise.ask(f"the surface of {surface.name}", surface, Witness.SURFACE)
    failed = pitfalls.failed | praise.failed
    return Verdict(
        diagnoses=diagnoses,
        good_news=tuple(merge(_complete(finding, None) for finding in praise.findings)),
        scope=f"{surface.name} over {surface.extent}",
        checked=tuple(rule.code for rule in pitfalls.rules if rule.code not in failed),
        not_checked=() if found or praise.findings else tuple(_still_open(surface)),
        failures=(*pitfalls.failures, *praise.failures),
    )


def _still_open(surface: Surface) -> Iterator[str]:
    """What descent did not show of a loss in which nothing was found."""
    from unstuck.findings.landmarks import End

    arrivals = surface.arrivals
    moving = arrivals.ended.get(End.MOVING, 0.0) if arrivals is not None else 0.0
    if arrivals is not None and moving:
        yield (
            f"whether descent arrives: {moving:.0%} of {arrivals.starts} starts were still moving after "
            f"{arrivals.steps} steps"
        ).replace("%", " %")


def _scope(setup: Setup) -> str:
    """What `check` could try with what it was given."""
    if setup.trial is None:
        return "the objects as they are, without a step"
    stepped = "step" in setup.trial.done
    return "one training step on one batch" if stepped else "one forward and backward pass on one batch"


def unite(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdicts on separate scripts as one, in the given order."""
    all_of = list(verdicts)
    # Two scripts that import one module both show what is wrong in it.
    return Verdict(
        diagnoses=_once_each(d for verdict in all_of for d in verdict.diagnoses),
        ignored=_once_each(d for verdict in all_of for d in verdict.ignored),
        good_news=tuple(d for verdict in all_of for d in verdict.good_news),
        scope=" and ".join(dict.fromkeys(verdict.scope for verdict in all_of if verdict.scope)),
        checked=tuple(dict.fromkeys(code for verdict in all_of for code in verdict.checked)),
        not_checked=tuple(dict.fromkeys(sentence for verdict in all_of for sentence in verdict.not_checked)),
        gaps=tuple(dict.fromkeys(sentence for verdict in all_of for sentence in verdict.gaps)),
        failures=tuple(sentence for verdict in all_of for sentence in verdict.failures),
    )


def _once_each(diagnoses: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """Of those that say the same of one place only the loudest, with the edits of another if it has none: a method that
    is read on its own says less than with its caller, and can be edited where it is."""
    kept: dict[tuple[object, ...], Diagnosis] = {}
    for diagnosis in diagnoses:
        matter = _matter(diagnosis)
        known = kept.setdefault(matter, diagnosis)
        loud, quiet = (diagnosis, known) if _loudness(diagnosis) < _loudness(known) else (known, diagnosis)
        if quiet.lead.fix.edits and not loud.lead.fix.edits:
            loud = msgspec.structs.replace(loud, lead=msgspec.structs.replace(loud.lead, fix=quiet.lead.fix))
        kept[matter] = loud
    return tuple(kept.values())


def _loudness(diagnosis: Diagnosis) -> tuple[int, bool]:
    return diagnosis.severity.rank, diagnosis.confidence is not Confidence.CERTAIN


def _matter(diagnosis: Diagnosis) -> tuple[object, ...]:
    lead = diagnosis.lead
    if lead.place is None or diagnosis.witnesses != (Witness.SOURCE,):
        return (lead.id, lead.place, lead.subject)
    return (lead.id, lead.place, lead.subject.kind, lead.subject.key)


class Hearing(msgspec.Struct, eq=False):
    """Collects what the rules say; a rule that breaks down is noted and the others are still heard."""

    rules: tuple[Rule, ...]
    findings: list[Finding] = msgspec.field(default_factory=list)
    failures: list[str] = msgspec.field(default_factory=list)
    failed: set[str] = msgspec.field(default_factory=set)
    exhausting: tuple[type[Exception], ...] = ()
    """Errors that say something of what is looked at, not of the rule: a text may be too deep or too large for us."""

    def ask(self, what: str, seen: Script | Setup | Record | Surface, witness: Witness) -> None:
        """Show `seen` to one kind of witness of every rule."""
        for rule in self.rules:
            try:
                self.findings += list(rule.findings(witness, seen))
            except Exception as error:
                if os.environ.get("UNSTUCK_RAISE") or isinstance(error, self.exhausting):
                    raise
                self.failed.add(rule.code)
                self.failures.append(f"rule {rule.code} failed on {what}: {type(error).__name__}: {error}")


def _is_ignored(diagnosis: Diagnosis, scripts: dict[str, Script | None]) -> bool:
    return any(finding.place and _is_silenced(finding, finding.place, scripts) for finding in diagnosis.findings)


def _is_silenced(finding: Finding, place: Place, scripts: dict[str, Script | None]) -> bool:
    if place.path not in scripts:
        scripts[place.path] = readable_script(place.path)
    script = scripts[place.path]
    lines = {place.line, place.end_line or place.line}
    if script is None:
        return False
    codes = [(word, finding.name) for word in beginnings(finding.code)]
    variants = [(finding.id, f"{finding.name}/{finding.variant}")] if finding.variant else []
    return any(script.ignored(line, code, name) for line in lines for code, name in (*codes, *variants))


def beginnings(code: str) -> tuple[str, ...]:
    """What a comment may call a rule besides its name: `O`, `O1` and `O12`."""
    return tuple(code[:size] for size in range(1, len(code) + 1))


def _complete(finding: Finding, record: Record | None, scripts: Sequence[Script] = ()) -> Finding:
    """Spell every path the same way, so that witnesses agree on places, and say how to verify the fix."""
    evidence = (msgspec.structs.replace(item, place=_respell(item.place)) for item in finding.evidence)
    edits = (msgspec.structs.replace(edit, path=spelled(edit.path)) for edit in finding.fix.edits)
    places = (_respell(place) for place in finding.related)
    finding = msgspec.structs.replace(
        finding,
        place=_respell(finding.place),
        related=tuple(place for place in places if place),
        evidence=tuple(evidence),
        fix=msgspec.structs.replace(finding.fix, edits=tuple(edits)),
    )
    if finding.verify:
        return finding
    return msgspec.structs.replace(finding, verify=_verify(finding, record, scripts))


def _verify(finding: Finding, record: Record | None, scripts: Sequence[Script]) -> Verify | None:
    expect = f"no {finding.code} {finding.name}"
    if record is not None and record.started.watched == "objects":
        return Verify("unstuck.diagnose(...) on the same objects", expect)
    if record is not None and record.started.watched == "logged":
        return None
    if record is not None and record.started.watched == "watch":
        script = [spelled(record.started.script), *record.started.arguments]
        again = shlex.join(["python", *script]) if record.started.source_hash else "unstuck.watch() around the same"
        return Verify(again, expect)
    if record is not None:
        return Verify(shlex.join(["unstuck", "run", *program_words(record), *record.started.arguments]), expect)
    if finding.witness is Witness.SOURCE and finding.place:
        return Verify(shlex.join(["unstuck", "lint", _linted(finding.place.path, scripts)]), expect)
    return None


def _linted(path: str, scripts: Sequence[Script]) -> str:
    """The file itself if it was linted, else the script that led to it and without which nothing is found there."""
    linted = [spelled(script.path) for script in scripts]
    return path if path in linted or not linted else linted[0]


def program_words(record: Record) -> list[str]:
    """The program of a run as one would type it: a path, or `-m` and a module."""
    script = record.started.script
    is_module = not os.path.exists(script) and not script.endswith(".py") and os.sep not in script
    return ["-m", script] if is_module else [spelled(script)]


def _respell(place: Place | None) -> Place | None:
    return msgspec.structs.replace(place, path=spelled(place.path)) if place else None


def spelled(path: str) -> str:
    """Relative to where we are when it lies below, as the user would type it."""
    if not path or path.startswith("<"):
        return path
    here = os.getcwd()
    whole = os.path.abspath(path)
    return os.path.relpath(whole, here) if whole.startswith(here.rstrip(os.sep) + os.sep) else whole


def _silent_rules(
    rules: Sequence[Rule],
    found: set[str],
    scripts: Sequence[Script],
    setup: Setup | None,
    trainings: Sequence[Training],
) -> dict[str, str]:
    """Rules that could not have said anything, each with the reason."""
    silent = {}
    for rule in rules:
        if rule.code not in found and (reason := _why_silent(rule, scripts, setup, trainings)):
            silent[rule.code] = reason
    return silent


def _why_silent(rule: Rule, scripts: Sequence[Script], setup: Setup | None, trainings: Sequence[Training]) -> str:
    if trainings and rule.run:
        reasons = [_why_silent_about(rule, training) for training in trainings]
        return reasons[0] if all(reasons) else ""
    if setup is not None and rule.setup:
        if LossCall in rule.needs and not setup.losses:
            return "no batch and loss were given to try" if setup.trial is None else "no loss of torch was called"
        if OptimizerSeen in rule.needs and not setup.optimizers:
            return "no optimizer was given"
        if setup.trial is None and ((Backward in rule.needs and not setup.backwards) or BatchSeen in rule.needs):
            return "no batch and loss were given to try"
        return setup.untried.get(rule.tries, "")
    if scripts and rule.source:
        return ""
    return f"only {' or '.join(SHOWN_BY[witness] for witness in rule.witnesses)} shows it"


def _why_silent_about(rule: Rule, training: Training) -> str:
    """Why a rule had nothing to look at in one training."""
    record = training.record
    if not any(record.of(*TRAINING)):
        return "the run called no model, no loss and no optimizer"
    needs = rule.logged if record.started.watched == "logged" else rule.needs
    missing = [kind for kind in needs if not any(record.of(kind))]
    if missing:
        return missing[0].ABSENT
    if rule.needs_one_optimizer and len({step.optimizer for step in record.of(OptimizerStep)}) > 1:
        return "several optimizers take turns, so no loss must fall"
    if rule.needs_fresh_weights and record.continues:
        return "the training began with trained weights"
    return ""


def _grouped(silent: dict[str, str]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for code, reason in silent.items():
        reasons.setdefault(reason, []).append(code)
    return [f"{', '.join(codes)}: {reason}" for reason, codes in reasons.items()]


def _trend(training: Training) -> Trend | None:
    """Which way the loss went. Several optimizers minimise several losses, of which no single word is true."""
    record = training.record
    return None if training.is_shared else goals.with_moving_goal(trend_of(losses_of(record)), record)
