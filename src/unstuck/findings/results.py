"""What experiments show, as plain data: for rules that judge them, and for every kind of report."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from unstuck.events import Place, Trial
from unstuck.findings import Diagnosis, Subject
from unstuck.findings.curve import Curve
from unstuck.findings.data_sets import DataFound
from unstuck.findings.mixing import Mixing
from unstuck.findings.relations import Answer

Measure = bool | int | float | str | None


class Isolation(StrEnum):
    """What prevents a trial from writing to the user's files."""

    OVERLAY = "overlay"
    """The kernel: whatever the trial and its children write lands in a layer of its own."""
    LANDLOCK = "landlock"
    """A copy of the working directory; the kernel forbids writing anywhere else."""
    COPIES = "copies"
    """A copy of the working directory, and the functions through which Python writes. C code is not stopped."""


class Status(StrEnum):
    """How a trial ended."""

    STOPPED = "stopped"
    """By us, once it had taken its steps."""
    FINISHED = "finished"
    EXITED = "exited"
    INTERRUPTED = "interrupted"
    CRASHED = "crashed"
    KILLED = "killed"
    """By us, at its deadline."""
    FAILED = "failed"
    """It could not be started."""


class RecipePart(StrEnum):
    """What `ablate` and `optimizer` switch off or replace, as sentences name it."""

    DROPOUT = "dropout"
    WEIGHT_DECAY = "weight decay"
    CLIPPING = "clipping"
    SCHEDULE = "the schedule"
    INITIAL_WEIGHTS = "its own initial weights"
    OPTIMIZER = "its own optimizer"


class ExperimentVerdict(StrEnum):
    """What an experiment showed. Each experiment has words of its own; every one may be undecided."""

    UNDECIDED = "undecided"
    PASSED = "passed"
    """`overfit`: the loss of one batch came to its floor, or near it and still falling."""
    FAILED = "failed"
    """`overfit`: it is stuck far above its floor."""
    LEARNS = "learns"
    """`baseline`: real inputs lead to a clearly lower loss than other inputs. `isolate`: there is nothing to corner."""
    IGNORES = "ignores"
    """`baseline`: they do not, though the loop can overfit one batch."""
    INSIDE = "inside"
    """`lr`: the script's own rate trains as well as any."""
    SLOWER = "slower"
    """`lr`: it is outside of the productive band, and the run ends higher for it."""
    TOO_LOW = "too low"
    """`lr`: by a factor of ten, and the run ends higher for it."""
    TOO_HIGH = "too high"
    INDEPENDENT = "independent"
    MIXING = "mixing"
    """`independence`: the output for an example depends on the others of its batch."""
    CAUSAL = "causal"
    LEAKING = "leaking"
    """`causality`: predictions depend on what comes later."""
    COPYING = "copying"
    """`causality`: the target of a position is the input at that position."""
    HELD_BACK = "held back"
    """`ablate`, `optimizer`: with one part switched off or replaced the run learns, and with it it does not."""
    NO_BETTER = "no better"
    """`ablate`, `optimizer`: it does no better without."""
    HOLDING = "holding"
    """`relations`: all that apply hold."""
    BROKEN = "broken"
    """`relations`: at least one does not hold."""
    CORNERED = "cornered"
    """`isolate`: with a part of ours in place of one of its own the run learns, and without it does not."""
    READABLE = "readable"
    """`layers`: the target can be read from the inputs, and from what the model makes of them."""
    UNREADABLE = "unreadable"
    """`layers`: nothing in the inputs shows anything about the target."""
    LOST = "lost"
    """`layers`: it can be read from the inputs, and from some module on no longer."""
    BLOCKED = "blocked"
    """`layers`: no gradient comes past a module, though those before it should learn."""
    BEATEN = "beaten"
    """`layers`: a reader in closed form does far better on new examples than the model on those it was trained on."""
    APART = "apart"
    """`gap`: training examples that were kept out are answered like the others, and those of the evaluation are not."""
    MEMORIZED = "memorized"
    """`gap`: training examples that were kept out are not."""
    SOUND = "sound"
    """`data`: nothing is wrong with the data sets, as far as was looked."""
    FLAWED = "flawed"
    """`data`: something is."""
    THE_SAME = "the same"
    """`compare`: two versions compute the same to the last bit."""
    DIFFERENT = "different"
    """`compare`: they do not; which of them learns better is not known, or neither does."""
    WORSE = "worse"
    """`compare`: the new version ends higher than the old one, whatever the seed."""
    BETTER = "better"
    REPRODUCIBLE = "reproducible"
    NOT_REPRODUCIBLE = "not reproducible"

    @property
    def is_good(self) -> bool:
        """Does it rule something out?"""
        return self in _GOOD


_GOOD = frozenset(
    {
        ExperimentVerdict.PASSED,
        ExperimentVerdict.LEARNS,
        ExperimentVerdict.INSIDE,
        ExperimentVerdict.INDEPENDENT,
        ExperimentVerdict.CAUSAL,
        ExperimentVerdict.NO_BETTER,
        ExperimentVerdict.HOLDING,
        ExperimentVerdict.READABLE,
        ExperimentVerdict.SOUND,
        ExperimentVerdict.THE_SAME,
        ExperimentVerdict.REPRODUCIBLE,
    }
)


class ProofVerdict(StrEnum):
    """What trying a remedy showed."""

    CONFIRMED = "confirmed"
    NO_EFFECT = "no effect"
    WORSE = "worse"
    UNDECIDED = "undecided"


class NamedCurve(msgspec.Struct, frozen=True):
    """One line of a plot."""

    label: str
    curve: Curve


class Pair(msgspec.Struct, frozen=True):
    """Two runs with the same seed and the same number of steps: without a remedy and with it."""

    seed: int
    without: Curve
    remedied: Curve
    without_status: Status
    remedied_status: Status


class Table(msgspec.Struct, frozen=True):
    """Numbers by row. The first column names the rows."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Measure, ...], ...]
    bar: int | None = None
    """The column, of shares of 1, that is drawn as a bar as well."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment that was done."""

    name: str
    """`data`, `overfit`, `baseline`, `ablate`, `lr`, `optimizer`, `isolate`, `independence`, `causality`, `layers`,
    `relations`, `seeds` or `compare`."""
    verdict: ExperimentVerdict
    sentence: str
    """What it showed, in the numbers of the user's own run."""
    method: str
    """What was done, in half a sentence: which batch, which seeds, how many steps, what was switched off."""
    curves: tuple[NamedCurve, ...] = ()
    measures: dict[str, Measure] = {}
    table: Table | None = None
    caveats: tuple[str, ...] = ()
    """What could not be done, or makes the answer weaker. A sentence each."""
    x_axis: str = "step"
    """What the curves are drawn over: `step` or `learning rate`."""
    xs: tuple[float, ...] = ()
    """The learning rates of a sweep, one for each value of its curve."""
    seconds: float = 0.0
    place: Place | None = None
    """Where in the script it shows, if it shows at one place."""
    probe: Trial | None = None
    """Of `independence` and `causality`: what the model did when parts of its batch were exchanged."""
    mixing: tuple[Mixing, ...] = ()
    """Of `independence`: the operations in which examples met."""
    relations: tuple[Answer, ...] = ()
    """Of `relations`: what became of each."""
    data: DataFound | None = None
    """Of `data`: what was read."""
    pairs: tuple[Pair, ...] = ()
    """Runs with and without the change that it is about, by which its own finding is proven."""


EDIT = "edit"
"""The remedy of a proof that edited the script."""


class Matter(msgspec.Struct, frozen=True):
    """What a finding is about, and where."""

    subject: Subject
    place: Place | None = None


def matters(diagnosis: Diagnosis) -> tuple[Matter, ...]:
    """Of all its findings. Its lead may unite the subject of one with the place of another."""
    return tuple(dict.fromkeys(Matter(one.subject, one.place) for one in (diagnosis.lead, *diagnosis.findings)))


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a finding when its remedy was tried."""

    code: str
    about: tuple[Matter, ...] = ()
    """What the findings of the diagnosis are about, the first being the one it leads with: two diagnoses of one code
    are two matters."""
    verdict: ProofVerdict
    sentence: str
    remedy: str
    """What was changed: `edit` for an edit of the script, or an intervention in words."""
    steps: int
    pairs: tuple[Pair, ...] = ()
    difference: float | None = None
    """The loss with the remedy as a share of the loss without, less 1: -0.8 is a loss lower by 80 %."""
    interval: tuple[float, float] | None = None
    """95 % interval of that share, over the seeds."""

    def is_about(self, diagnosis: Diagnosis) -> bool:
        """Was it the remedy of this one that was tried?"""
        return diagnosis.lead.code == self.code and not set(self.about).isdisjoint(matters(diagnosis))

    @property
    def is_edit(self) -> bool:
        """Was the script edited?"""
        return self.remedy == EDIT

    @property
    def place(self) -> Place | None:
        """Where it shows."""
        return self.about[0].place if self.about else None
