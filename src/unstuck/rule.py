"""What a rule is, and how rules are found.

A rule is a pair in `rules/<family>/`: `some_name.py` holds one `Rule` called `rule`, `some_name.md` its page.
Adding a rule adds two files and edits none.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from unstuck.events import Event, Place, Setup
from unstuck.findings import Confidence, Evidence, Finding, Fix, Severity, Subject, Verify, Witness

if TYPE_CHECKING:
    from unstuck.findings.results import Experiment
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script
    from unstuck.surface.model import Surface

SourceWitness = Callable[["Script"], Iterable[Finding]]
SetupWitness = Callable[[Setup], Iterable[Finding]]
RunWitness = Callable[["Record"], Iterable[Finding]]
SurfaceWitness = Callable[["Surface"], Iterable[Finding]]
ExperimentWitness = Callable[["Experiment"], Iterable[Finding]]
Remedy = Callable[[Finding], Iterable[Sequence["Intervention"]]]
"""Ways to change a run so that the pitfall is gone, the best first; none if that cannot be done from outside."""


class Rule(msgspec.Struct, eq=False):
    """One pitfall: its identity and its witnesses, each a function from what it reads to findings."""

    code: str
    name: str
    title: str
    """The pitfall in half a sentence, for tables."""
    severity: Severity
    explains: Sequence[str] = ()
    """Codes of the rules whose findings are symptoms of this one."""
    needs: Sequence[type[Event]] = ()
    """Events without which its run witness has nothing to look at; the report then says so."""
    only_in_text: Sequence[str] = ()
    """Kinds of subjects of which no run can show anything, so that lint's word on them stands beside a run."""
    good_news: bool = False
    """What it finds is no pitfall but its absence: said plainly, and never counted against anybody."""
    source: SourceWitness | None = None
    setup: SetupWitness | None = None
    run: RunWitness | None = None
    surface: SurfaceWitness | None = None
    experiment: ExperimentWitness | None = None
    remedy: Remedy | None = None
    """Beside the edits of a finding, which are tried first."""
    changes_loss: bool = False
    """Is the loss counted differently once the pitfall is gone? Then runs with and without it are compared by how far
    each falls from its own start."""
    page: Path = Path()
    family: str = ""

    def in_source(self, witness: SourceWitness) -> SourceWitness:
        """Decorator: this function sees the rule in a script's text."""
        self.source = witness
        return witness

    def in_setup(self, witness: SetupWitness) -> SetupWitness:
        """Decorator: this function sees the rule in live objects before training."""
        self.setup = witness
        return witness

    def in_run(self, witness: RunWitness) -> RunWitness:
        """Decorator: this function sees the rule in the record of a run."""
        self.run = witness
        return witness

    def in_surface(self, witness: SurfaceWitness) -> SurfaceWitness:
        """Decorator: this function sees the rule in the shape of a loss."""
        self.surface = witness
        return witness

    def in_experiment(self, witness: ExperimentWitness) -> ExperimentWitness:
        """Decorator: this function sees the rule in what an experiment showed."""
        self.experiment = witness
        return witness

    def remedied_by(self, remedy: Remedy) -> Remedy:
        """Decorator: this function knows which interventions take the pitfall out of a run."""
        self.remedy = remedy
        return remedy

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        """Which witnesses it has."""
        return tuple(witness for witness in Witness if getattr(self, witness.value))

    @property
    def docs(self) -> str:
        """How to read its page."""
        return f"unstuck explain {self.code}"

    def finding(
        self,
        witness: Witness,
        message: str,
        *,
        cause: str,
        fix: str | Fix,
        subject: Subject,
        place: Place | None = None,
        related: Iterable[Place | None] = (),
        evidence: Iterable[Evidence] = (),
        severity: Severity | None = None,
        confidence: Confidence = Confidence.CERTAIN,
        verify: Verify | None = None,
    ) -> Finding:
        """A finding of this rule. `fix` is a sentence, or a `Fix` where there are edits."""
        others = tuple(dict.fromkeys(spot for spot in related if spot is not None and spot != place))
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity or self.severity,
            confidence=confidence,
            witness=witness,
            message=message,
            cause=cause,
            subject=subject,
            place=place,
            related=others,
            evidence=tuple(evidence),
            fix=Fix(fix) if isinstance(fix, str) else fix,
            verify=verify,
            docs=self.docs,
        )


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule under `unstuck.rules`, by code."""
    found = (_rule_in(module) for module in _modules())
    return tuple(sorted((rule for rule in found if rule is not None), key=lambda rule: rule.code))


@functools.cache
def source_rules() -> tuple[Rule, ...]:
    """Those that read text. The others are not even imported, so that lint starts quickly."""
    found = (_rule_in(module) for module in _modules() if _mentions_source(module))
    return tuple(sorted((rule for rule in found if rule is not None and rule.source), key=lambda rule: rule.code))


def _modules() -> list[pkgutil.ModuleInfo]:
    package = importlib.import_module("unstuck.rules")
    found = pkgutil.walk_packages(package.__path__, "unstuck.rules.")
    names = ((info, info.name.split(".")[2:]) for info in found)
    return [info for info, (family, *rest) in names if family != "shared" and not (rest and rest[-1].startswith("_"))]


def _mentions_source(info: pkgutil.ModuleInfo) -> bool:
    folder = getattr(info.module_finder, "path", None)
    if folder is None:
        return True
    file = Path(folder) / f"{info.name.rpartition('.')[2]}.py"
    return not file.is_file() or b"in_source" in file.read_bytes()


def _rule_in(info: pkgutil.ModuleInfo) -> Rule | None:
    module = importlib.import_module(info.name)
    rule = getattr(module, "rule", None)
    if not isinstance(rule, Rule) or not module.__file__:
        return None
    rule.page = Path(module.__file__).with_suffix(".md")
    rule.family = info.name.split(".")[2]
    return rule


def find_rule(word: str) -> Rule | None:
    """The rule with this code or name, whatever the case."""
    wanted = word.strip().lower().replace("_", "-")
    return next((rule for rule in all_rules() if wanted in (rule.code.lower(), rule.name)), None)


def rules_named(word: str) -> tuple[Rule, ...]:
    """The rule with this code or name, or else every rule whose code begins so, such as `G` or `O1`."""
    rule = find_rule(word)
    start = word.strip().upper()
    return (rule,) if rule else tuple(rule for rule in all_rules() if start and rule.code.startswith(start))


def nearest(word: str) -> str | None:
    """The code or name the user probably meant."""
    import difflib

    wanted = word.strip().replace("_", "-")
    codes = difflib.get_close_matches(wanted.upper(), [rule.code for rule in all_rules()], 1, 0.8)
    close = codes or difflib.get_close_matches(wanted.lower(), [rule.name for rule in all_rules()], 1, 0.65)
    return close[0] if close else None
