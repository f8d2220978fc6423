"""Lines that every script has (logging, meters, bars, checkpoints) hide no mistake in the loop around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from unstuck.judge import judge
from unstuck.source import read_script


class Line:
    """A harmless line of a training loop, and the lines it needs before the loop."""

    def __init__(self, text: str, *before: str) -> None:
        self.text = text
        self.before = "\n".join(before)


LINES = (
    Line(
        'writer.add_scalar("loss", loss, step)',
        "from torch.utils.tensorboard import SummaryWriter",
        "writer = SummaryWriter()",
    ),
    Line('writer.add_scalar("loss", loss, step)', "from common import make_writer", "writer = make_writer()"),
    Line(
        'writer.add_histogram("weights", model[0].weight, step)',
        "from tensorboardX import SummaryWriter",
        "writer = SummaryWriter()",
    ),
    Line('wandb.log({"loss": loss})', "import wandb", "wandb.init(project='x')"),
    Line('wandb.log({"loss": loss.item(), "model": model}, step=step)', "import wandb"),
    Line('mlflow.log_metric("loss", loss, step=step)', "import mlflow"),
    Line('neptune_run["loss"].append(loss)', "import neptune", "neptune_run = neptune.init_run()"),
    Line('logger.info("%f", loss)', "import logging", "logger = logging.getLogger(__name__)"),
    Line('logger.info(f"loss {loss:.3f}")', "from loguru import logger"),
    Line('logging.info("step %d loss %f", step, loss)', "import logging"),
    Line('logger.log({"loss": loss, "model": model})', "from common import logger"),
    Line("bar.set_postfix(loss=loss)", "from tqdm import tqdm", "bar = tqdm(total=10)"),
    Line("bar.update(1)", "from tqdm import tqdm", "bar = tqdm(total=10)"),
    Line('bar.set_description(f"loss {loss.item():.3f}")', "from common import bar"),
    Line(
        "losses.update(loss.item(), x.size(0))",
        "from utils import AverageMeter",
        "losses = AverageMeter('loss', ':.4f')",
    ),
    Line("losses.update(loss, x.size(0))", "from utils import AverageMeter", "losses = AverageMeter()"),
    Line(
        "batch_time.update(time.time() - end)",
        "import time",
        "from utils import AverageMeter",
        "end = time.time()",
        "batch_time = AverageMeter()",
    ),
    Line(
        "meters['loss'].update(loss.item())",
        "from collections import defaultdict",
        "from utils import SmoothedValue",
        "meters = defaultdict(SmoothedValue)",
    ),
    Line(
        "metric_logger.update(loss=loss, lr=optimizer.param_groups[0]['lr'])",
        "import utils",
        "metric_logger = utils.MetricLogger(delimiter='  ')",
    ),
    Line("acc.update(out, y)", "import torchmetrics", "acc = torchmetrics.Accuracy(task='multiclass', num_classes=3)"),
    Line(
        "acc(out.softmax(dim=1), y)",
        "from torchmetrics.classification import MulticlassAccuracy",
        "acc = MulticlassAccuracy(3)",
    ),
    Line("acc1, acc5 = accuracy(out, y, topk=(1, 5))", "from utils import accuracy"),
    Line(
        "metric.add_batch(predictions=out.argmax(1), references=y)",
        "import evaluate",
        "metric = evaluate.load('accuracy')",
    ),
    Line(
        "ema.update(model)", "from ema import ExponentialMovingAverage", "ema = ExponentialMovingAverage(model, 0.99)"
    ),
    Line("ema.update(model)", "from timm.utils import ModelEmaV2", "ema = ModelEmaV2(model)"),
    Line(
        "ema.update()",
        "from torch_ema import ExponentialMovingAverage",
        "ema = ExponentialMovingAverage(model.parameters(), decay=0.99)",
    ),
    Line(
        "averaged.update_parameters(model)",
        "from torch.optim.swa_utils import AveragedModel",
        "averaged = AveragedModel(model)",
    ),
    Line("if step % 100 == 0:\n        save_checkpoint(model)", "from utils import save_checkpoint"),
    Line(
        "if step % 100 == 0:\n        save_checkpoint({'model': model, 'optimizer': optimizer.state_dict()})",
        "from utils import save_checkpoint",
    ),
    Line("if step % 100 == 0:\n        utils.save(model, optimizer, step)", "import utils"),
    Line(
        "checkpointer.save(step, model=model)", "from common import Checkpointer", "checkpointer = Checkpointer('out')"
    ),
    Line("torch.save(model.state_dict(), 'model.pt')"),
    Line("norm = sum(p.grad.norm() ** 2 for p in model.parameters()) ** 0.5"),
    Line(
        "for name, p in model.named_parameters():\n        history.append((name, p.grad.abs().mean().item()))",
        "history = []",
    ),
    Line("print('loss', loss, optimizer.param_groups[0]['lr'])"),
    Line(
        "lr = scheduler.get_last_lr()[0]",
        "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)",
        "scheduler.step()",
    ),
    Line("torch.cuda.synchronize()"),
    Line("timer.stop()", "from common import Timer", "timer = Timer()"),
    Line("history.append(loss.item())", "history = []"),
    Line("text = f'{loss.item():.2f} {model}'"),
    Line("dist.barrier()", "import torch.distributed as dist"),
    Line("dist.all_reduce(loss.detach())", "import torch.distributed as dist"),
    Line("reduced = reduce_tensor(loss.data)", "from utils import reduce_tensor"),
    Line("send(loss.item(), step, 'train')", "from elsewhere import send"),
    Line("send(loss.detach(), out.detach())", "from elsewhere import send"),
    Line("inspect_batch(x, y)", "from elsewhere import inspect_batch"),
    Line("profiler.step()", "from common import profiler"),
    Line("assert torch.isfinite(loss), float(loss)"),
    Line("if not math.isfinite(loss.item()):\n        raise RuntimeError('the loss is not finite')", "import math"),
    Line("stopper(loss.item())", "from common import EarlyStopping", "stopper = EarlyStopping(patience=5)"),
)

START = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(16, 4), torch.randint(0, 3, (16,))) for _ in range(100)]
"""

MISTAKES = {
    "O04/never-cleared": """
for step, (x, y) in enumerate(data):
    out = model(x)
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
    EVERYDAY
""",
    "O04/no-step": """
for step, (x, y) in enumerate(data):
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out, y)
    loss.backward()
    EVERYDAY
""",
    "O04/cleared-too-late": """
for step, (x, y) in enumerate(data):
    out = model(x)
    loss = criterion(out, y)
    loss.backward()
    EVERYDAY
    optimizer.zero_grad()
    optimizer.step()
""",
    "O05/stays-in-eval": """
model.train()
for step, (x, y) in enumerate(data):
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out, y)
    loss.backward()
    optimizer.step()
    EVERYDAY
    model.eval()
    with torch.no_grad():
        print((model(x).argmax(1) == y).float().mean())
""",
    "O03": """
for step, (x, y) in enumerate(data):
    optimizer.zero_grad()
    out = model(x)
    loss = criterion(out.detach(), y)
    loss.backward()
    optimizer.step()
    EVERYDAY
""",
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.text.partition("\n")[0])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_harmless_line_hides_no_mistake(mistake: str, line: Line) -> None:
    text = f"{START}\n{line.before}\n{MISTAKES[mistake].replace('EVERYDAY', line.text)}"
    verdict = judge(scripts=(read_script(Path("train.py"), text=text),))
    code, _, variant = mistake.partition("/")
    leads = [diagnosis.lead for diagnosis in verdict.diagnoses]
    found = [lead for lead in leads if lead.code == code and (not variant or lead.variant == variant)]
    assert found, [f"{lead.code}/{lead.variant}" for lead in leads]
