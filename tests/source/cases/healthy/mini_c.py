import torch
from torch import nn
m = nn.Linear(4, 1)
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    for p in m.parameters():
        if p.grad is not None:
            p.grad.data.zero_()
    m(torch.randn(2, 4)).mean().backward()
    opt.step()
for i in range(10):
    for p in m.parameters():
        if p.grad is not None:
            p.grad.detach_()
            p.grad.zero_()
    m(torch.randn(2, 4)).mean().backward()
    opt.step()
for i in range(10):
    m(torch.randn(2, 4)).mean().backward()
    with torch.no_grad():
        opt.step()
        for name, p in m.named_parameters():
            p.grad[:] = 0
for i in range(10):
    m(torch.randn(2, 4)).mean().backward()
    opt.step()
    torch._foreach_zero_([p.grad for p in m.parameters()])
zg = opt.zero_grad
for i in range(10):
    m(torch.randn(2, 4)).mean().backward()
    opt.step()
    zg()
for i in range(10):
    m(torch.randn(2, 4)).mean().backward()
    opt.step()
    m.apply(lambda mod: mod.zero_grad())
