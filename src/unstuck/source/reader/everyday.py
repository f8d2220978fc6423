"""Lines that every script has and that train nothing: logging, meters, progress bars, checkpoints, timers, averages."""

from __future__ import annotations

import re

from unstuck.lazy import pattern
from unstuck.source.trace import EVERYTHING, NOTHING, Ability

OBSERVERS = frozenset(
    "wandb mlflow neptune comet_ml clearml aim tensorboard tensorboardX visdom swanlab logging loguru structlog "
    "dllogger tqdm rich alive_progress progressbar torchmetrics torcheval evaluate sklearn seqeval sacrebleu rouge "
    "matplotlib plt seaborn pandas json pickle yaml csv os sys time datetime shutil math random psutil pynvml thop "
    "ptflops fvcore torchinfo torchsummary torchviz warnings copy pprint collections dataclasses typing itertools "
    "operator enum string re glob pathlib inspect types numbers statistics platform argparse traceback".split()
)
"""Libraries that look at what they are given and change none of it."""
OBSERVING_MODULES = (
    "torch.utils.tensorboard", "torch.profiler", "torch.autograd.profiler", "torch.cuda", "torch.distributed",
)  # fmt: skip

WATCHES = frozenset(
    "save saves saver savers saving checkpoint checkpoints checkpointer ckpt snapshot log logs logger loggers logging "
    "print write writes writer writers plot plots plotter draw show dump report reporter record recorder records "
    "display visual visualize visualise visualizer visualiser vis viz visdom summary summarize summarise histogram "
    "accuracy acc accs metric metrics meter meters tracker track monitor bar pbar progress tqdm postfix history stats "
    "statistics timer timers time stopwatch profile profiler prof ema averager average averaged avg swa barrier "
    "synchronize stopper stopping confusion miou iou ious auc f1 bleu psnr ssim top1 top5 prec1 prec5 losses "
    "tensorboard tb wandb mlflow neptune memory fps eta throughput confmat env envs environment gym game world "
    "simulator sim".split()
)
"""Words in names of functions and objects that observe a training, or are the world that an agent acts in."""
EVALUATES = frozenset(
    "eval evaluate evaluates evaluation evaluator test tester testing val valid validate validation validator infer "
    "inference predict prediction sample generate demo".split()
)
TRAINS = frozenset(
    "step backward backprop zero optimize optimise optimizer optimiser minimize fit clear reset apply train trainer "
    "training learn learner agent policy engine solver update_weights grads".split()
)
"""Words that outweigh the others: `log_and_step(optimizer)` steps."""
COMPUTES_LOSS = frozenset("criterion criterions loss losses objective".split())
"""Last words of names of functions that compute a loss. Some clear gradients that they made on their way."""
OF_LOSS_FUNCTION = Ability.CLEAR | Ability.SWITCH
SETTINGS = frozenset("lr lrs learning_rate momentum wd weight_decay".split())
"""Settings of an optimizer: what changes only these trains nothing."""
COLLECTIONS = frozenset("dict out output outputs batch kwargs info infos config cfg results result counter".split())
"""Last words of names of dicts, of which `update` means something else."""
RESCALES = frozenset("clip scale unscale reduce allreduce gather allgather".split())
STORES = frozenset(
    "append extend add insert put push write info debug warning warn error critical exception log format join "
    "set_postfix set_description set_postfix_str add_scalar add_scalars add_histogram add_image add_images add_text "
    "add_figure add_graph state_dict items keys values get".split()
)
"""Methods that keep or show what they are given, whatever object has them."""
_PARTS = pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+")


def words_of(name: str) -> list[str]:
    """The words of a name: `save`, `checkpoint` of saveCheckpoint and save_checkpoint."""
    return [part.lower() for part in _PARTS.findall(name)]


def ability_of_name(called: str, receiver: str = "", kind: str = "") -> Ability:
    """What a function or method with such a name could do at most; `kind` is the class of the object that has it."""
    module = kind.split(".", maxsplit=1)[0]
    if module in OBSERVERS or kind.startswith(OBSERVING_MODULES):
        return NOTHING
    words = words_of(called)
    object_words = {*words_of(receiver.rpartition(".")[2]), *words_of(kind.rpartition(".")[2])}
    if receiver or kind:
        if called in STORES or (called == "update" and is_collection(receiver, kind)):
            return NOTHING
        if object_words & WATCHES and not object_words & TRAINS:
            return NOTHING
    if TRAINS.intersection(words):
        return NOTHING if _sets(words) else EVERYTHING
    if WATCHES.intersection(words) or _sets(words):
        return NOTHING
    if RESCALES.intersection(words):
        return Ability.RESCALE
    if COMPUTES_LOSS.intersection(words[-1:]) or (COMPUTES_LOSS.intersection(words) and words[-1] in ("fn", "func")):
        return OF_LOSS_FUNCTION
    if EVALUATES.intersection(words) or (object_words & EVALUATES and not object_words & TRAINS):
        return Ability.SWITCH
    return EVERYTHING


def _sets(words: list[str]) -> bool:
    """Does it say that it changes settings, and nothing else? `adjust_learning_rate`, `warmup_lr`."""
    text = "_".join(words)
    named = any(f"_{setting}_" in f"_{text}_" for setting in SETTINGS)
    return named and not (TRAINS - {"learning"}).intersection(words)


def is_collection(receiver: str, kind: str = "") -> bool:
    """Is it a dict by its name? `batch_updater` and `config_trainer` are not."""
    words = words_of((receiver or kind).rpartition(".")[2])
    return bool(COLLECTIONS.intersection(words[-1:])) and not TRAINS.intersection(words)


def is_observer(symbol: str) -> bool:
    """Is it a function of a library that only observes?"""
    return symbol.split(".", maxsplit=1)[0] in OBSERVERS or re.match(r"torch\.(save|profiler)\b", symbol) is not None
