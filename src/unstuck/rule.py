"""What a rule is, and how rules are found.

A rule is a pair in `rules/<family>/`: `some_name.py` holds one `Rule` called `rule`, `some_name.md` its page.
Adding a rule adds two files and edits none. A large rule is a folder `rules/<family>/some_name/`: `__init__.py` holds
the `Rule` and names the files of its witnesses, as in `rule.in_run(find_in("unstuck.rules.wiring.some_name.run"))`;
`page.md` is the page.

A rule with several variants lists them, and names one in each finding:

    class Order(Variant):
        NEVER_CLEARED = "never-cleared", "gradients are never cleared"
        NO_STEP = "no-step", "the optimizer never steps"

    rule = Rule("O04", "step-order", "...", Severity.ERROR, variants=Order.titles())
    rule.finding(..., variant=Order.NEVER_CLEARED)

Other packages add rules of their own through the entry point group `unstuck.rules`, one entry for each module or folder
of the same form; `examples/rules_of_a_team` is one.

`O04/never-cleared` then works wherever `O04` does: in ignore comments, settings, `--select` and `unstuck explain`. The
page may describe them, each under a heading `### never-cleared` of the section `## Variants`.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from unstuck.events import Event, Place, Setup
from unstuck.findings import Confidence, Evidence, Finding, Fix, Severity, Subject, Verify, Witness
from unstuck.importable import entry_points, importable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from types import ModuleType

    from unstuck.findings.results import Experiment
    from unstuck.findings.surface import Surface
    from unstuck.interventions import Intervention
    from unstuck.record import Record
    from unstuck.source import Script

GROUP = "unstuck.rules"
"""The entry points through which other packages bring rules."""

SourceWitness = Callable[["Script"], Iterable[Finding]]
SetupWitness = Callable[[Setup], Iterable[Finding]]
RunWitness = Callable[["Record"], Iterable[Finding]]
SurfaceWitness = Callable[["Surface"], Iterable[Finding]]
ExperimentWitness = Callable[["Experiment"], Iterable[Finding]]
Remedies = Iterator[Sequence["Intervention"]]
Remedy = Callable[[Finding], Remedies]
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
    logged: Sequence[type[Event]] = ()
    """Of a rule that can also judge a run that was not watched: the events it needs for that, which are made of losses,
    rates, norms and scales that somebody else logged."""
    needs_one_optimizer: bool = False
    """Its run witness says nothing of several optimizers that take turns: their losses need not fall."""
    needs_fresh_weights: bool = False
    """Its run witness says nothing of a training that begins with trained weights."""
    only_in_text: Sequence[str] = ()
    """Kinds of subjects that no run can show, so that a report on a run includes what lint says about them."""
    hygiene: bool = False
    """It costs memory, time or reproducibility, so it is never called the cause of what a run achieved."""
    is_final: bool = False
    """What it has found once cannot change any more, so that a run in progress reports it at once."""
    tries: str = ""
    """The part of the trial of `check` without which its setup witness has nothing to look at."""
    good_news: bool = False
    """It finds what is right, not a pitfall: reported as such, and never counted as a finding."""
    source: SourceWitness | None = None
    setup: SetupWitness | None = None
    run: RunWitness | None = None
    surface: SurfaceWitness | None = None
    experiment: ExperimentWitness | None = None
    remedy: Remedy | None = None
    """Tried after the edits of a finding."""
    changes_loss: bool = False
    """Is the loss counted differently once the pitfall is gone? Then runs with and without it are compared by how far
    each falls from its own start."""
    variants: Mapping[str, str] = {}
    """The title of each variant, half a sentence, by its id; see above."""
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
        """Decorator: this function knows which interventions remove the pitfall from a run."""
        self.remedy = remedy
        return remedy

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        """Which witnesses it has."""
        return tuple(witness for witness in Witness if getattr(self, witness.value))

    def findings(self, witness: Witness, seen: Any) -> Iterator[Finding]:
        """What one witness finds in what it is shown, with its name on each finding."""
        look: Callable[[Any], Iterable[Finding]] | None = getattr(self, witness.value)
        for finding in look(seen) if look else ():
            yield msgspec.structs.replace(finding, witness=witness)

    @property
    def docs(self) -> str:
        """How to read its page."""
        return f"unstuck explain {self.code}"

    def finding(
        self,
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
        variant: str = "",
    ) -> Finding:
        """A finding of this rule; `findings` adds which witness it is. `fix` is a sentence, or a `Fix` with edits."""
        if variant and variant not in self.variants:
            raise ValueError(f"rule {self.code} declares no variant {str(variant)!r}; add it to Rule(variants=...).")
        others = tuple(dict.fromkeys(spot for spot in related if spot is not None and spot != place))
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity or self.severity,
            confidence=confidence,
            message=message,
            cause=cause,
            subject=subject,
            place=place,
            related=others,
            evidence=tuple(evidence),
            fix=Fix(fix) if isinstance(fix, str) else fix,
            verify=verify,
            docs=f"{self.docs}/{variant}" if variant else self.docs,
            variant=str(variant),
            hygiene=self.hygiene,
        )


def find_in(module: str) -> Callable[[Any], Iterable[Finding]]:
    """The witness `find` of another file of a rule's folder, which is imported when it is first asked."""

    def find(seen: Any) -> Iterable[Finding]:
        found: Iterable[Finding] = importlib.import_module(module).find(seen)
        return found

    return find


def with_change(intervention: str, *arguments: Any) -> Remedy:
    """The remedy that is one intervention whatever was found, by the name of its class: lint starts without these."""

    def remedied(finding: Finding) -> Remedies:
        from unstuck import interventions

        yield (getattr(interventions, intervention)(*arguments),)

    return remedied


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Our own rules and those that installed packages bring, by code."""
    return _sorted((*own_rules(), *rules_of_other_packages()))


@functools.cache
def source_rules() -> tuple[Rule, ...]:
    """Those that read text. Of ours the others are not even imported, so that lint starts quickly."""
    own = (_rule_in(module) for module, path in _modules().items() if _mentions_source(path))
    found = _sorted((*(rule for rule in own if rule is not None), *rules_of_other_packages()))
    return tuple(rule for rule in found if rule.source)


@functools.cache
def own_rules() -> tuple[Rule, ...]:
    """Every rule under `unstuck.rules`, by code."""
    return _sorted(rule for module in _modules() if (rule := _rule_in(module)) is not None)


def _sorted(found: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(found, key=lambda rule: rule.code))


@functools.cache
def rules_of_other_packages() -> tuple[Rule, ...]:
    """The rules of the entry points. One that cannot be loaded costs a sentence on stderr."""
    found: list[Rule] = []
    for entry in _entry_points():
        try:
            rule = _loaded(entry)
            taken = next((known for known in found if known.code == rule.code or known.name == rule.name), None)
            if taken is not None:
                raise ValueError(f"{taken.code} {taken.name} comes from another entry point already")
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"unstuck: the rule {entry.name} of {entry.value} is left out: {said}", file=sys.stderr)
        else:
            found.append(rule)
    return tuple(found)


def _loaded(entry: EntryPoint) -> Rule:
    loaded = entry.load()
    rule = loaded if isinstance(loaded, Rule) else getattr(loaded, "rule", None)
    if not isinstance(rule, Rule):
        raise TypeError("it holds no Rule called `rule`")
    for page in Path(importlib.import_module("unstuck.rules").__path__[0]).rglob("*.md"):
        with page.open(encoding="utf-8") as file:  # the rules themselves would take longer to load
            code, name = file.readline().removeprefix("# ").partition(":")[0].split()
        if rule.code == code or rule.name == name:
            raise ValueError(f"{code} {name} is a rule of unstuck; choose another code and name")
    add_page(rule, importlib.import_module(entry.module))
    return rule


def add_page(rule: Rule, module: ModuleType) -> None:
    """Note where the page of a rule lies and which family it belongs to: those of the module that holds it."""
    file = Path(module.__file__ or "")
    rule.page = file.with_name("page.md") if file.name == "__init__.py" else file.with_suffix(".md")
    rule.family = module.__name__.split(".")[2 if module.__name__.startswith("unstuck.rules.") else 0]


@functools.cache
def _entry_points() -> tuple[EntryPoint, ...]:
    return entry_points(GROUP)


def files_of_other_packages() -> list[Path]:
    """The Python files that rules of other packages consist of, for whoever keeps their answers."""
    packages = {sys.modules.get(entry.module.split(".")[0]) for entry in _entry_points() if rules_of_other_packages()}
    files = {Path(module.__file__) for module in packages if module is not None and module.__file__}
    return sorted(
        path for file in files for path in (file.parent.rglob("*.py") if file.name == "__init__.py" else [file])
    )


def _modules() -> dict[str, str]:
    """The modules and folders of the families, none of them imported, each with its path; what begins with `_` is a
    helper of others."""
    import unstuck.rules

    families = [family for family in importable(unstuck.rules.__path__) if os.path.isdir(family[1])]
    return {
        f"unstuck.rules.{family}.{name}": path
        for family, folder in families
        if family != "shared"
        for name, path in importable([folder])
        if not name.startswith("_")
    }


@functools.cache
def load_witnesses() -> None:
    """Import every rule, with the files of those that are folders, which a witness would do when it is first asked."""
    all_rules()
    for module, path in _modules().items():
        for part, _ in importable([path]) if os.path.isdir(path) else ():
            importlib.import_module(f"{module}.{part}")


def _mentions_source(path: str) -> bool:
    for file in [f"{path}/__init__.py", *(part for _, part in importable([path]))] if os.path.isdir(path) else [path]:
        with open(file, "rb", buffering=0) as text:
            if b"in_source" in text.read():
                return True
    return False


def _rule_in(name: str) -> Rule | None:
    module = importlib.import_module(name)
    rule = getattr(module, "rule", None)
    if not isinstance(rule, Rule) or not module.__file__:
        return None
    add_page(rule, module)
    return rule


def find_rule(word: str) -> Rule | None:
    """The rule with this code or name, whatever the case; `O04/never-cleared` must name one of its variants too."""
    found = find_variant(word)
    return found[0] if found else None


def find_variant(word: str) -> tuple[Rule, str] | None:
    """The rule that a word such as `O04`, `step-order` or `O04/never-cleared` names, and the variant or ""."""
    wanted, slash, variant = word.strip().lower().replace("_", "-").partition("/")
    rule = next((rule for rule in all_rules() if wanted in (rule.code.lower(), rule.name)), None)
    return (rule, variant) if rule is not None and (variant in rule.variants or not slash) else None


def rules_named(word: str) -> tuple[Rule, ...]:
    """The rule with this code or name, or else every rule whose code begins so, such as `G` or `O1`."""
    rule = find_rule(word)
    start = word.strip().upper()
    return (rule,) if rule else tuple(rule for rule in all_rules() if start and rule.code.startswith(start))


def nearest(word: str) -> str | None:
    """The code, name or variant the user probably meant."""
    import difflib

    wanted, slash, variant = word.strip().replace("_", "-").partition("/")
    if slash and (rule := find_rule(wanted)):
        meant = difflib.get_close_matches(variant.lower(), list(rule.variants), 1, 0.65)
        return f"{rule.code}/{meant[0]}" if meant else rule.code
    codes = difflib.get_close_matches(wanted.upper(), [rule.code for rule in all_rules()], 1, 0.8)
    close = codes or difflib.get_close_matches(wanted.lower(), [rule.name for rule in all_rules()], 1, 0.65)
    return close[0] if close else None
