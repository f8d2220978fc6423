import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_ as clip

m = nn.LSTM(4, 4)
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    out, _ = m(torch.randn(5, 2, 4))
    loss = out.pow(2).mean()
    opt.zero_grad()
    clip(m.parameters(), 0.25)  # finding: clip-misplaced
    loss.backward()
    opt.step()
