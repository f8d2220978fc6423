import torch
from torch import nn

m = nn.Linear(4, 2)
opt = torch.optim.Adam(m.parameters())
sched = torch.optim.lr_scheduler.StepLR(opt, 10)
scaler = torch.amp.GradScaler("cuda")
for i in range(10):
    opt.zero_grad()
    loss = nn.functional.mse_loss(m(torch.randn(2, 4)), torch.randn(2, 2))
    scaler.scale(loss).backward()  # finding: step-order
    scaler.update()
    sched.step()
