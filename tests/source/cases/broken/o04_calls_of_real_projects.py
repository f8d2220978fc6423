"""None of these lines hides the mistake: an environment, a hook that looks on, a dict, a schedule, apex, recursion."""

import torch
import torch.nn.functional as F
from apex import amp
from elsewhere import criterion, make_task, make_teacher, scheduler
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 2)
        self.kept = None

    def keep(self, gradient):
        self.kept = gradient

    def forward(self, x):
        x = self.body(x)
        x.register_hook(self.keep)
        return x


def flat(tree, found):
    for item in tree if isinstance(tree, list) else []:
        flat(item, found)
    return found


net, teacher = Net(), make_teacher()
task = make_task()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(1000):
    state, reward, done = task.step(to_numpy(action))
    out = net(state)
    out_dict = describe(out)
    out_dict.update({"teacher": teacher(state)})
    loss = F.cross_entropy(out, reward)
    flat([[loss], [loss]], [])
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    if not torch.isfinite(loss):
        raise RuntimeError("the loss is not finite")
    torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
    optimizer.step()  # finding: step-order
    scheduler.step_update(step)
    meters.setdefault("loss", Meter()).update(loss.item(), reward.item())
