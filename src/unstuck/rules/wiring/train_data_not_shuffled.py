"""M04: training batches in the fixed order of the dataset."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator

from unstuck.events import LoaderSeen, LossCall, Place
from unstuck.events.losses import CLASS_LOSSES
from unstuck.findings import Confidence, Evidence, Finding, Severity, Subject
from unstuck.findings.results import Experiment
from unstuck.lazy import pattern
from unstuck.record import Record
from unstuck.rule import Rule
from unstuck.rules.shared.data import ended_in_first_pass, trained_on, training_losses
from unstuck.source import Script, flow
from unstuck.source.edits.edit import Editor, Edits, fix_with
from unstuck.source.facts import Called
from unstuck.source.reader.scope import dotted
from unstuck.source.values import UNKNOWN, Const, Instance, Symbol, Tensor, UserClass, Value, alternatives

rule = Rule(
    code="M04",
    name="train-data-not-shuffled",
    title="training batches come in the order of the dataset",
    severity=Severity.WARNING,
    explains=("M13", "O25", "O26", "R08"),
    needs=(LossCall,),
)

SORTED_CAUSE = "{kind} is sorted by class, so each batch has only one class and every step undoes the one before."
FIXED_CAUSE = "Every epoch has the same batches in the same order, so the model also learns the order."
SORTED = frozenset({"ImageFolder", "DatasetFolder"})
"""Datasets that are sorted by class."""
ORDERED_OPS = frozenset("cat concat concatenate hstack repeat_interleave arange linspace sort sorted".split())
"""Functions that create sorted labels."""
RANDOM_OPS = pattern(r"rand|bernoulli|multinomial|normal|poisson|shuffle")
SMALLEST_BATCH = 8
"""In smaller batches a single class may be chance."""
FEWEST_BATCHES = 8
SORTED_SHARE = 0.1
"""Of the changes of label that a random order has."""
RUNS = 2
"""Batches of one label in a row."""
IN_SEQUENCE = pattern(r"(?i)seq|series|time|stream|window|stock|forecast|signal|video|traject|episode|replay|bptt|lm")


@rule.in_source
def in_source(script: Script) -> Iterator[Finding]:
    """Loaders without shuffling whose batches are back-propagated."""
    made = [called for called in script.facts.calls if called.last == "DataLoader" and called.name.startswith("torch.")]
    suspects = {id(called.result): called for called in made if _in_order(called)}
    for loader in _trained_on(script, set(suspects)) if suspects else ():
        called = suspects.pop(id(loader), None)
        if called is not None:
            yield from _judge(script, called, loader)


@rule.in_run
def in_run(record: Record) -> Iterator[Finding]:
    """Training batches of a single class each, while the labels as a whole are of several."""
    by_line: dict[Place, list[LossCall]] = {}
    for call in training_losses(record, *CLASS_LOSSES):
        classes = call.target.classes if call.target is not None else None
        if call.place is not None and classes is not None and classes.total >= SMALLEST_BATCH:
            by_line.setdefault(call.place, []).append(call)
    for place, calls in by_line.items():
        yield from _sorted_batches(record, place, calls)


@rule.in_experiment
def in_experiment(experiment: Experiment) -> Iterator[Finding]:
    """The training data, read by `data`, are sorted by their labels, and their loader does not shuffle."""
    training = experiment.data.training if experiment.data is not None else None
    found = training.order if training is not None else None
    if training is None or found is None or not training.classes or len(training.classes) < 2:
        return
    run = training.read / (found.changes + 1)
    if found.changes > SORTED_SHARE * found.expected or run < RUNS * max(SMALLEST_BATCH, training.batch_size or 1):
        return
    yield rule.finding(
        f"{training.name} is not shuffled, and its examples are sorted by label: {found.changes} changes of label in "
        f"{training.read:,} examples, where a random order has {found.expected:.0f}.",
        cause="Most batches have only one class, so every step undoes the one before.",
        fix="Pass shuffle=True to the loader.",
        subject=Subject.at("loop", training.name, training.place),
        place=training.place,
        evidence=[
            Evidence("changes of label", found.changes),
            Evidence("in random order", round(found.expected, 1)),
            Evidence("examples in a batch", training.batch_size or 1),
        ],
    )


def _sorted_batches(record: Record, place: Place, calls: list[LossCall]) -> Iterator[Finding]:
    counted = [call.target.classes for call in calls if call.target is not None and call.target.classes is not None]
    single = [classes for classes in counted if classes.distinct == 1]
    seen = {next(iter(classes.counts)) for classes in single}
    if len(counted) < FEWEST_BATCHES or len(single) < 0.8 * len(counted):
        return
    loader = _in_order_loader(record, single[0].total)
    if loader is None and trained_on(record):
        return
    if len(seen) < 2 and (loader is None or not ended_in_first_pass(record, loader)):
        return
    whose = f"{loader.loader} over {loader.dataset}" if loader is not None else ""
    yield rule.finding(
        f"{len(single)} of {len(counted)} training batches examined had only one class.",
        cause="The data is sorted by class, so every step undoes the one before.",
        fix="Pass shuffle=True to the loader." if loader is not None else "Shuffle the data before batching.",
        subject=Subject.at("loop", whose, loader.place if loader is not None else place),
        place=loader.place if loader is not None else place,
        related=(place,),
        evidence=[
            Evidence("batches of one class", len(single)),
            Evidence("batches examined", len(counted)),
            Evidence("examples in a batch", single[0].total),
            Evidence("classes recorded", len(seen)),
            *([Evidence("sampler", loader.sampler)] if loader is not None else []),
        ],
    )


def _in_order_loader(record: Record, size: int) -> LoaderSeen | None:
    """The loader without shuffling that was trained on and gives batches of this size."""
    found = [loader for loader in trained_on(record) if loader.sampler == "SequentialSampler"]
    return next((loader for loader in found if loader.batch_size == size), found[0] if found else None)


def _in_order(called: Called) -> bool:
    """Neither shuffle nor a sampler is passed, as far as the text shows."""
    given = {keyword.arg for keyword in called.node.keywords}
    if given & {None, "sampler", "batch_sampler"} or len(called.args) > 3 or "len(" in ast.unparse(called.node):
        return False
    return _shuffle(called) in (None, Const(False))


def _shuffle(called: Called) -> Value | None:
    return called.args[2] if len(called.args) > 2 else called.kwargs.get("shuffle")


def _trained_on(script: Script, suspects: Container[int]) -> Iterator[Instance]:
    """Unshuffled loaders whose batches lead to a backward(), each once.

    A backward() that a shuffled loader also leads to is shared with evaluation, which some condition excludes.
    """
    by_line: dict[Place | None, dict[int, Instance]] = {}
    for item in script.facts.backwards:
        behind = flow.behind(item.value, through_cuts=True) if item.value is not None else ()
        by_line.setdefault(item.event.place, {}).update({id(loader): loader for loader in _loaders(behind)})
    seen: set[int] = set()
    for loaders in by_line.values():
        if all(key in suspects for key in loaders):
            yield from (loader for key, loader in loaders.items() if key not in seen)
            seen.update(loaders)


def _loaders(values: Iterable[Value]) -> Iterator[Instance]:
    for value in values:
        if isinstance(value, Tensor) and value.op in ("data", "batch") and value.args:
            loader = value.args[0]
            if isinstance(loader, Instance):
                yield loader


def _judge(script: Script, called: Called, loader: Instance) -> Iterator[Finding]:
    dataset = loader.args[0] if loader.args else loader.kwargs.get("dataset", UNKNOWN)
    if not isinstance(dataset, Instance) or IN_SEQUENCE.search(f"{dataset.last} {loader.label} {dataset.label}"):
        return
    in_order = _is_sorted(dataset)
    if _is_shuffled_before(script, dataset) or _ignores_labels(script, called, loader):
        return
    if not in_order and (_shuffle(called) is not None or not _has_fixed_order(dataset)):
        return
    name = loader.label or "the loader"
    cause = SORTED_CAUSE.format(kind=dataset.label or dataset.last) if in_order else FIXED_CAUSE
    yield rule.finding(
        f"{name} is trained on without shuffling.",
        cause=cause,
        fix=fix_with(
            "Pass shuffle=True (unless you pass your own sampler).",
            _shuffling(script, called),
            "unsafe",
        ),
        subject=Subject.at("loop", name, called.place),
        place=called.place,
        severity=Severity.WARNING if in_order else Severity.ADVICE,
        confidence=Confidence.LIKELY,
    )


def _shuffling(script: Script, called: Called) -> Edits | None:
    editor = Editor(script)
    if len(called.node.args) < 3:
        return editor.set_keyword(called.place, "shuffle", "True")
    call = editor.call_at(called.place)
    return editor.replace(call.args[2], "True") if isinstance(call, ast.Call) else None


def _is_shuffled_before(script: Script, dataset: Instance) -> bool:
    """`random.shuffle(dataset.samples)`, anywhere."""
    shuffles = (called for called in script.facts.calls if called.last == "shuffle" and called.node.args)
    return any(dotted(called.node.args[0]).split(".")[0] == dataset.label != "" for called in shuffles)


def _ignores_labels(script: Script, called: Called, loader: Instance) -> bool:
    """`for x, _ in loader`: without labels there are no classes."""
    loops = [node for node in ast.walk(_around(script, called)) if isinstance(node, ast.For)]
    loops = [loop for loop in loops if _mentions(loop.iter, loader.label)]
    labels = [(loop, _last_name(loop.target)) for loop in loops]
    return bool(loops) and all(name and not _is_read(loop, name) for loop, name in labels)


def _around(script: Script, called: Called) -> ast.AST:
    """The function around a call, or the file."""
    functions = (node for node in ast.walk(script.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    around = [node for node in functions if any(part is called.node for part in ast.walk(node))]
    return around[-1] if around else script.tree


def _last_name(target: ast.expr) -> str:
    """`y` of `x, y` and of `step, (x, y)`; empty when nothing is unpacked."""
    pair = isinstance(target, ast.Tuple) and len(target.elts) > 1
    while isinstance(target, ast.Tuple) and target.elts:
        target = target.elts[-1]
    return dotted(target) if pair else ""


def _mentions(expression: ast.expr, name: str) -> bool:
    return bool(name) and any(isinstance(part, ast.expr) and dotted(part) == name for part in ast.walk(expression))


def _is_read(loop: ast.For, name: str) -> bool:
    names = (part for part in ast.walk(loop) if isinstance(part, ast.Name) and part.id == name)
    return any(isinstance(part.ctx, ast.Load) for part in names)


def _is_sorted(dataset: Instance) -> bool:
    """Are the examples certainly sorted by class?"""
    if dataset.cls is None and dataset.last in SORTED:
        return True
    if dataset.last != "TensorDataset" or len(dataset.args) < 2:
        return False
    made = [value for value in flow.behind(dataset.args[-1], through_cuts=True) if isinstance(value, Tensor)]
    return bool(made) and made[0].op in ORDERED_OPS and not any(RANDOM_OPS.search(value.op) for value in made)


def _has_fixed_order(dataset: Instance) -> bool:
    """An indexed dataset, the user's or torchvision's, whose order is not already random."""
    if dataset.cls is not None:
        return _derives_from_dataset(dataset.cls)
    return dataset.kind.startswith("torchvision.datasets.")


def _derives_from_dataset(cls: UserClass) -> bool:
    bases: list[Value] = [option for base in cls.bases for option in alternatives(base)]
    if any(isinstance(base, UserClass) and _derives_from_dataset(base) for base in bases):
        return True
    return any(isinstance(base, Symbol) and base.name == "torch.utils.data.Dataset" for base in bases)
