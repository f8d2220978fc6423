"""What a run takes in: data, seeds, checkpoints, and what it is evaluated on.

Nothing here holds a tensor or imports torch.
"""

from __future__ import annotations

from typing import ClassVar

from unstuck.events import Event, InputFact, Place, TensorFact


class LoaderSeen(Event, tag="loader-seen", frozen=True):
    """A DataLoader began its first pass."""

    ABSENT: ClassVar[str] = "no DataLoader was used"

    loader: str = ""
    dataset: str = ""
    """The class of the data set."""
    length: int | None = None
    """How many examples it holds, where that is known."""
    batch_size: int | None = None
    sampler: str = ""
    """The class of the sampler, such as RandomSampler."""
    workers: int = 0
    drop_last: bool = False
    trained: bool = False
    """A backward followed a batch of it. Recorded again when this and what follows becomes known."""
    passes: int = 1
    same_start: int = 0
    """How many later passes began with exactly the batch that the first one began with."""
    weights: int | None = None
    """Of a WeightedRandomSampler: how many weights it holds, one for each example it can draw."""
    draws: int | None = None
    """And how many examples it draws in a pass."""
    generators: tuple[str, ...] = ()
    """Attributes of the data set that are random generators, drawn from in `__getitem__` and copied into workers."""
    seeded_alike: Place | None = None
    """Where `worker_init_fn` gives every worker the same seed."""
    seeded_again: Place | None = None
    """Where `__getitem__` of the data set seeds with one number for every example."""
    overwritten: str = ""
    """An attribute of the data set whose numbers changed while examples were read from it."""
    overwritten_passes: int = 0
    """Of the first passes, those in which that was seen."""


class Seeded(Event, tag="seeded", frozen=True):
    """A random generator was seeded: `torch`, `numpy` or `random`."""

    generator: str = "torch"
    seed: int | None = None
    """None at the end of a run: numbers were drawn from it and it was never seeded."""


class StateLoaded(Event, tag="state-loaded", frozen=True):
    """`load_state_dict` of a model returned or raised."""

    ABSENT: ClassVar[str] = "no weights were loaded"

    model: str = ""
    strict: bool = True
    matched: int = 0
    """How many tensors of the model were given a value."""
    tensors: int = 0
    """How many it has."""
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    """The first 20 names of each."""
    missing_count: int = 0
    unexpected_count: int = 0
    failed: bool = False
    own: bool = False
    """What was loaded are the model's own tensors, so that nothing changed."""


class CopySeen(Event, tag="copy-seen", frozen=True):
    """A network that was called without gradients in training steps, and has the class and shapes of another one that
    learns: a target network or a running average. `place` is the call. Counted from the start of the run."""

    ABSENT: ClassVar[str] = "no copy of a network was used"

    model: str = ""
    source: str = ""
    """The one that learns."""
    windows: int = 0
    """Watched steps in which both were called."""
    changes: int = 0
    """How often its weights were other than in the watched step before."""
    moves: int = 0
    """How often those of the source were."""
    same_inputs: int = 0
    """In how many of the steps both were given the same inputs."""
    loaded: bool = False
    """A checkpoint gave it its weights."""


class Evaluated(Event, tag="evaluated", frozen=True):
    """A stretch in which models ran without gradients, and what their answers were worth; recorded when training
    continues. Where the program computes no loss there, its answers are compared with the batch they are about."""

    ABSENT: ClassVar[str] = "no evaluation was seen"

    model: str = ""
    training_mode: bool = False
    """The model was in training mode."""
    grad_enabled: bool = False
    forwards: int = 0
    loss: str = ""
    value: float | None = None
    """Mean of the loss over the calls looked at."""
    accuracy: float | None = None
    """Of the highest score against the label, for classes; of loaders that are not trained on, where there are any."""
    input: TensorFact | None = None
    """What the model was given in the first call."""
    unused: int = 0
    """How many calls recorded a graph that was dropped before any gradient was asked for."""
    examples: int = 0
    """How many labels the accuracy rests on."""
    classes: int = 0
    """How many classes the loss has."""
    explained: float | None = None
    """For numbers: the share of the variance of the targets that the answers explain."""


class StatisticsUntouched(Event, tag="statistics-untouched", frozen=True):
    """A model was evaluated with batch norms whose statistics are those of a new layer, and whose weights are not."""

    ABSENT: ClassVar[str] = "no trained batch norm was evaluated with the statistics of a new one"

    model: str = ""
    layers: tuple[str, ...] = ()
    batch_norms: int = 0
    """All in that model that keep statistics."""
    looks: int = 0
    """Evaluations of it so far."""


class GraphsBatched(Event, tag="graphs-batched", frozen=True):
    """A model was given several graphs in one batch: nodes, edges between them, and the graph of each node."""

    ABSENT: ClassVar[str] = "no model was given graphs as nodes, edges and the graph of each node"

    model: str = ""
    input: str = ""
    """The name of the argument that holds the edges."""
    nodes: int = 0
    edges: int = 0
    graphs: int = 0
    largest: int = 0
    """Nodes of the largest graph."""
    highest: int = 0
    """The highest number of a node in an edge."""
    with_edges: int = 0
    """Graphs with at least one edge."""
    repeated: int = 0
    """Edges that join the same two nodes as another one."""


class InputsCompared(Event, tag="inputs-compared", frozen=True):
    """What a model was given in evaluation, next to what it was given in training. `place` is the call there."""

    ABSENT: ClassVar[str] = "no evaluation was given inputs like those of training"

    model: str = ""
    input: str = ""
    """The name of the argument."""
    shape: tuple[int, ...] = ()
    """Of one example."""
    trained: int = 0
    evaluated: int = 0
    """Examples that were looked at."""
    columns: int = 0
    """Numbers: those that vary in training. Ids: how many there are, or pairs of neighbours."""
    scales: tuple[float, ...] = ()
    """Of the columns, the standard deviation in evaluation over that in training: first decile, median, last decile."""
    means: float | None = None
    """The same for means, median, where these differ from 0."""
    shift: float | None = None
    """How far the means are apart, in standard deviations of training, median."""
    alike: float | None = None
    """The correlation of frequencies between two halves of the evaluation,"""
    across: float | None = None
    """and between evaluation and training."""
    with_target: int = 0
    """Ids that came in both, and in training often enough to know their mean target."""
    same_target: float | None = None
    """The correlation of the targets in evaluation with the means of their ids in training,"""
    same_target_within: float | None = None
    """and of those of one half of training with the means of the other."""
    answers_fit: float | None = None
    """The correlation of what the model answers in evaluation with the targets there."""


class AnswersFedBack(Event, tag="answers-fed-back", frozen=True):
    """An evaluation gave a model its own answers as the last position of its next inputs. `place` is the call."""

    ABSENT: ClassVar[str] = "no model was given its own answers"

    model: str = ""
    rollouts: int = 0
    """How often that began."""
    answers: int = 0
    """Numbers that were given back first, from inputs that were real."""
    factor: float = 1.0
    """By what they were multiplied,"""
    offset: float = 0.0
    """and what was added."""
    spread: float = 1.0
    """Their standard deviation, over that of the last position of the inputs before them, which were real."""
    shift: float = 0.0
    """The distance of the means, in standard deviations of the real ones."""


class TargetsCompared(Event, tag="targets-compared", frozen=True):
    """Examples that a model received more than once in training, and the targets that a loss compared them with.
    Counted from the start of the run, over the batches that were looked at; `place` is the call of the loss."""

    ABSENT: ClassVar[str] = "no example came twice"

    loss: str = ""
    examples: int = 0
    """How many different ones there were."""
    repeats: int = 0
    """How often one came again."""
    different: int = 0
    """How often it then had another target than the first time."""
    chance: float | None = None
    """How often two targets that have nothing to do with each other would be equal; None for numbers."""
    correlation: float | None = None
    """Between the targets of examples that came again and those they had first."""


class SoftTargetsCompared(Event, tag="soft-targets-compared", frozen=True):
    """Soft targets, such as a teacher's answers, next to labels of the same examples in another loss. Counted since the
    last such event; `place` is the call of the loss that is given the soft targets."""

    ABSENT: ClassVar[str] = "no step compared answers with soft targets and with labels"

    labels_at: Place | None = None
    """The call of the other loss."""
    examples: int = 0
    agree: float = 0.0
    """The share of examples whose most likely class is their label."""
    chance: float = 0.0
    """What that share would be if they had nothing to do with each other."""
    confidence: float = 0.0
    """The probability of the most likely class, on average."""
    classes: int = 0


class TargetsCopied(Event, tag="targets-copied", frozen=True):
    """A classification loss compared scores for ids with ids that were, at every position, the input of the model.
    Counted from the start of the run; `place` is the call of the loss."""

    loss: str = ""
    shape: tuple[int, ...] = ()
    """Of the input."""
    copied: int = 0
    looked_at: int = 0
    """Batches of ids."""
    given: int = 1
    """How many tensors of ids the model was given: one of several may be what it should answer."""


class BatchSeen(Event, tag="batch-seen", frozen=True):
    """What a model received in a training step, as it received it; recorded a few times in a run."""

    ABSENT: ClassVar[str] = "no batch was looked at"

    model: str = ""
    inputs: tuple[InputFact, ...] = ()
    duplicates: int | None = None
    """How many examples of the batch equal another one."""
    constant: float | None = None
    """The share of features that are the same for every example."""
    loader: str = ""
    """The DataLoader that gave the batch, where the batch is recorded as it came and not as a model received it."""
    examples: int = 0
    """How many there are in the batch."""
    layer: str = ""
    """The first layer with weights, its class, and what reached it."""
    layer_kind: str = ""
    layer_input: InputFact | None = None
