import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        defaults = dict(rho=rho, **kwargs)
        super().__init__(params, defaults)
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                e_w = p.grad * 0.05
                p.add_(e_w)
                self.state[p]["e_w"] = e_w
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.sub_(self.state[p]["e_w"])
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()


net = nn.Linear(4, 2)
optimizer = SAM(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()
for x, y in [(torch.randn(4, 4), torch.randint(0, 2, (4,)))] * 5:
    loss = loss_fn(net(x), y)
    loss.backward()
    optimizer.first_step(zero_grad=True)
    loss_fn(net(x), y).backward()
    optimizer.second_step(zero_grad=True)
