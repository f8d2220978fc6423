import torch
from torch import nn

model = nn.GRU(4, 8)
opt = torch.optim.Adam(model.parameters())
for step in range(10):
    opt.zero_grad()
    out, _ = model(torch.randn(5, 2, 4))
    loss = out.pow(2).mean()
    loss.backward()
    opt.step()
    # only measures
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    print(step, loss.item(), grad_norm.item())
