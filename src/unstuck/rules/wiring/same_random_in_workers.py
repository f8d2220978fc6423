"""M05: random numbers that are the same in every worker, epoch or example."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from unstuck.events import LoaderSeen, Place, Seeded
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.modes import says_evaluation
from unstuck.source import Script
from unstuck.source.facts import Called
from unstuck.source.reader.scope import SourceFile, dotted
from unstuck.source.values import UNKNOWN, Const, Instance, UserClass, UserFunction

rule = Rule(
    code="M05",
    name="same-random-in-workers",
    title="the same random numbers in every worker, epoch or example",
    severity=Severity.WARNING,
    needs=(LoaderSeen,),
)

GENERATORS = pattern(r"^(numpy\.random\.(RandomState|default_rng|Generator)|random\.Random|torch\.Generator)$")
SEEDS = pattern(r"(^|\.)(random\.seed|manual_seed|seed_everything|set_seed|np\.random\.seed|numpy\.random\.seed)$")
RANDOM_TEXT = pattern(r"seed\(|RandomState|default_rng|Random\(|Generator\(")
COPIED = (
    "Every worker process starts with a copy in the same state, so all of them draw the same numbers. Without "
    "persistent_workers=True, new copies draw them again in every epoch."
)
WORKERS = "Every worker is seeded with the same number, so all of them draw the same augmentations."
MANY = 10
EPOCHS = "The generator is in the same state at the start of every pass, so every epoch has the same order."
STEPS = "The generator is reset before every step, so each one draws the same noise and drops the same units."
WITH_TORCH = (
    "Use torch.rand, which is seeded per worker and epoch, or create the generator in worker_init_fn from "
    "torch.initial_seed()."
)
DIFFERENTLY = "Seed with torch.initial_seed() % 2**32, which differs between workers, or drop worker_init_fn."
BY_INDEX = "Seed once, before training. For repeatable examples seed with the index."
EXAMPLES = "The generator is reset before every example, so each one gets the same 'random' augmentation."


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Generators copied into workers, workers with the same seed, and examples that seed again."""
    if not RANDOM_TEXT.search(script.text) or not re.search(r"Dataset|DataLoader", script.text):
        return
    loaders = [called for called in script.facts.calls if called.last == "DataLoader"]
    reported: set[Place] = set()
    for finding in (*_copied(script, loaders), *_seeded_alike(script, loaders), *_seeded_again(script)):
        if finding.place is not None and finding.place not in reported:
            reported.add(finding.place)
            yield finding


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Generators copied into workers, shuffled passes with the same start, and examples or steps that seed again."""
    loaders = {event.loader: event for event in record.of(LoaderSeen) if event.place is not None}
    again = list(_reseeded(record))
    yield from again
    reported = {finding.place.key for finding in again if finding.place is not None}
    for loader in (loader for loader in loaders.values() if loader.trained):
        yield from _seeded_by_loader(loader, reported)
        if loader.generators:
            yield _run_finding(
                f"{loader.dataset} draws from self.{loader.generators[0]}, and each of {loader.workers} "
                "workers has a copy of it.",
                COPIED,
                WITH_TORCH,
                loader.place,
                [Evidence("generators", list(loader.generators)), Evidence("workers", loader.workers)],
            )
        elif "Random" in loader.sampler and loader.same_start >= 2 and not again:
            yield _run_finding(
                f"{loader.same_start + 1} passes over the shuffled {loader.loader} began with exactly the same batch.",
                EPOCHS,
                "Seed once, before the first epoch, and do not pass the loader a newly created generator.",
                loader.place,
                [
                    Evidence("passes with the same first batch", loader.same_start + 1),
                    Evidence("passes", loader.passes),
                ],
            )


def _seeded_by_loader(loader: LoaderSeen, reported: set[tuple[str, int]]) -> Iterator[Finding]:
    """What the code of the dataset and of worker_init_fn shows; the workers themselves are not observed."""
    alike, again = loader.seeded_alike, loader.seeded_again
    if alike is not None:
        yield _run_finding(
            f"worker_init_fn gives each of {loader.workers} workers the same seed.", WORKERS, DIFFERENTLY, alike, []
        )
    if again is not None and again.key not in reported and not says_evaluation(loader.dataset):
        yield _run_finding(
            f"{loader.dataset}.__getitem__ uses the same seed for every example.", EXAMPLES, BY_INDEX, again, []
        )


def _reseeded(record: Record) -> Iterator[Finding]:
    """One line that uses the same seed for every example or in consecutive steps."""
    by_line: dict[tuple[Place, str, int], list[int]] = {}
    for event in record.of(Seeded):
        if event.place is not None and event.seed is not None:
            by_line.setdefault((event.place, event.generator, event.seed), []).append(event.step)
    for (place, generator, seed), steps in by_line.items():
        for_example = place.function.endswith("__getitem__") and not says_evaluation(place.function)
        in_a_row = len([1 for before, after in itertools.pairwise(steps) if after - before == 1])
        if len(steps) >= MANY and (for_example or in_a_row >= MANY):
            what = "example" if for_example else "step"
            yield _run_finding(
                f"{generator} is seeded with {seed} again for every {what}.",
                EXAMPLES if for_example else STEPS,
                BY_INDEX,
                place,
                [Evidence("times recorded", len(steps)), Evidence("seed", seed)],
            )


def _run_finding(message: str, cause: str, fix: str, place: Place | None, evidence: list[Evidence]) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "random numbers", place),
        place=place,
        evidence=evidence,
    )


def _copied(script: Script, loaders: list[Called]) -> Iterator[Finding]:
    names = {called.node: called.name for called in script.facts.calls} if loaders else {}
    for called in loaders:
        dataset = called.args[0] if called.args else called.kwargs.get("dataset", UNKNOWN)
        workers = called.kwargs.get("num_workers", Const(0))
        several = isinstance(workers, Const) and isinstance(workers.value, int) and workers.value > 0
        if not several or not isinstance(dataset, Instance) or dataset.cls is None or "worker_init_fn" in called.kwargs:
            continue
        for name, node in _generators(dataset.cls, names):
            if _drawn_from(dataset.cls, name):
                place = SourceFile(script.path, script.lines).place(node)
                other = dataset.cls.scope.source.path != script.path
                yield _finding(
                    f"self.{name} of {dataset.last} draws the same numbers in every worker.",
                    COPIED,
                    WITH_TORCH,
                    called.place if other else place,
                    called.place,
                )


def _generators(cls: UserClass, names: dict[ast.Call, str]) -> Iterator[tuple[str, ast.AST]]:
    """Attributes that `__init__` sets to a new random generator on every branch."""
    start = cls.methods.get("__init__")
    for node in ast.walk(start) if start is not None else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made, target = names.get(node.value, ""), node.targets[0]
            own = isinstance(target, ast.Attribute) and dotted(target.value) == "self"
            # Without a seed default_rng() asks the system for one, but only once: the copies still share it.
            if own and isinstance(target, ast.Attribute) and GENERATORS.search(made):
                yield target.attr, node


def _drawn_from(cls: UserClass, name: str) -> bool:
    """`__getitem__` draws from it, and nothing but `__init__` creates it."""
    fresh = [
        node
        for method in cls.methods.values()
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name
    ]
    item = cls.methods.get("__getitem__")
    drawn = item is not None and any(dotted(node).startswith(f"self.{name}.") for node in _attributes(item))
    seeded = any("get_worker_info" in dotted(node) or node.attr == "seed" for node in _attributes(cls.node))
    return drawn and not seeded and len(fresh) == 1


def _attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    return (part for part in ast.walk(node) if isinstance(part, ast.Attribute))


def _seeded_alike(script: Script, loaders: list[Called]) -> Iterator[Finding]:
    """A `worker_init_fn` that uses one seed for all workers."""
    for called in loaders:
        function = called.kwargs.get("worker_init_fn")
        if not isinstance(function, UserFunction) or function.scope.source.path != script.path:
            continue
        calls = [node for node in ast.walk(function.node) if isinstance(node, ast.Call)]
        seeds = [node for node in calls if SEEDS.search(dotted(node.func)) and node.args]
        if seeds and all(isinstance(node.args[0], ast.Constant) for node in seeds):
            yield _finding(
                "worker_init_fn gives every worker the same seed.",
                WORKERS,
                DIFFERENTLY,
                SourceFile(script.path, script.lines).place(seeds[0]),
                called.place,
            )


def _seeded_again(script: Script) -> Iterator[Finding]:
    """`np.random.seed(0)` inside `__getitem__` of a training dataset, on every call."""
    for node in script.tree.body:
        if (
            not isinstance(node, ast.ClassDef)
            or says_evaluation(node.name)
            or not any(dotted(base).endswith("Dataset") for base in node.bases)
        ):
            continue
        item = next(
            (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__getitem__"), None
        )
        for statement in item.body if item is not None else ():
            call = statement.value if isinstance(statement, ast.Expr) else None
            if (
                isinstance(call, ast.Call)
                and SEEDS.search(dotted(call.func))
                and len(call.args) == 1
                and isinstance(call.args[0], ast.Constant)
                and call.args[0].value is not None
            ):
                yield _finding(
                    f"{node.name}.__getitem__ seeds with {ast.unparse(call.args[0])} for every example.",
                    EXAMPLES,
                    BY_INDEX,
                    SourceFile(script.path, script.lines).place(call),
                )


def _finding(message: str, cause: str, fix: str, place: Place, related: Place | None = None) -> Finding:
    return rule.finding(
        message,
        cause=cause,
        fix=fix,
        subject=Subject.at("call", "random numbers", place),
        place=place,
        related=(related,),
        confidence=Confidence.CERTAIN,
    )
