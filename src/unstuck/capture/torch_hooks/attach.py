"""The one list of observers, and what attaches them to torch and takes them away again."""

from __future__ import annotations

from types import ModuleType

from unstuck.capture.detect.graph import watch_hooks
from unstuck.capture.detect.nonfinite import Inspector
from unstuck.capture.measure.tensors import reading
from unstuck.capture.observers.backwards import Backwards
from unstuck.capture.observers.copies import Copies
from unstuck.capture.observers.data import Batches, Loaders
from unstuck.capture.observers.episodes import Episodes
from unstuck.capture.observers.evaluations import Evaluations
from unstuck.capture.observers.forwards import Forwards, Modes
from unstuck.capture.observers.gradients import Clips, Reductions, StaleGradients, Zeroing
from unstuck.capture.observers.loss_inputs import watch_loss
from unstuck.capture.observers.losses import CtcLosses, Losses, Softmaxes
from unstuck.capture.observers.pairs import Pairs
from unstuck.capture.observers.scaling import Scaling
from unstuck.capture.observers.schedules import Schedulers
from unstuck.capture.observers.scores import Scores
from unstuck.capture.observers.seeds import Seeds
from unstuck.capture.observers.soft_targets import SoftTargets
from unstuck.capture.observers.states import Loads
from unstuck.capture.observers.steps import Steps
from unstuck.capture.observers.unused import UnusedLayers
from unstuck.capture.players.players import Players
from unstuck.capture.tasks.tasks import Tasks
from unstuck.capture.torch_hooks.patches import Patches
from unstuck.capture.window import Observer, Summary, Watch
from unstuck.capture.written_weights.between_steps import WrittenWeights


def observers(watch: Watch) -> list[Observer]:
    """All of them, in the order in which they are called. One that asks another for something is given it here."""
    inspector, stale, batches = Inspector(watch), StaleGradients(watch), Batches(watch)
    scores, written = Scores(watch), WrittenWeights(watch)
    evaluations = Evaluations(watch, batches, scores)
    loaders = Loaders(watch, evaluations)
    players, tasks = Players(watch), Tasks(watch)
    unused, pairs, copies, episodes = UnusedLayers(watch), Pairs(watch), Copies(watch), Episodes(watch, players)
    forwards = Forwards(watch, inspector, evaluations, batches, unused, pairs, copies, episodes, players, tasks)
    zeroing = Zeroing(watch, stale)
    backwards = Backwards(
        watch, inspector, forwards, evaluations, loaders, stale, zeroing, scores, players, tasks, written
    )
    steps = Steps(watch, inspector, backwards, zeroing, stale, episodes, written)
    return [
        Schedulers(watch),
        Summary(watch),
        forwards,
        unused,
        pairs,
        copies,
        episodes,
        players,
        tasks,
        Modes(watch, evaluations),
        Losses(watch, inspector, evaluations, batches, pairs, SoftTargets(watch), scores, players, tasks),
        CtcLosses(watch),
        Softmaxes(watch),
        inspector,
        evaluations,
        batches,
        loaders,
        Seeds(watch),
        Loads(watch, written),
        stale,
        zeroing,
        Clips(watch),
        Reductions(watch, forwards),
        backwards,
        steps,
        Scaling(watch, steps),
    ]


class Attachment:
    """The observers of one watch, attached to torch until `remove`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.patches = Patches(watch.guard)
        attached = observers(watch)
        watch.window.follow(attached)
        try:
            watch_hooks(self.patches)
            for observer in attached:
                observer.attach(self.patches)
        except BaseException:
            self.patches.remove()
            raise
        self.patches.settled()

    def watch_loss(self, module: ModuleType, name: str) -> None:
        """Record what a loss of the user's own is given."""
        trouble = watch_loss(self.patches, self.watch, module, name)
        if trouble:
            self.watch.note(trouble)

    def remove(self) -> None:
        """Detach from torch and record what still waits."""
        self.patches.remove()
        with reading():
            self.watch.guard.protect("the end of the run", self.watch.window.finish)()
