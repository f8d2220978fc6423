import torch
from torch import nn

m = nn.LSTM(4, 4)
opt = torch.optim.Adam(m.parameters())
for i in range(10):
    out, _ = m(torch.randn(5, 2, 4))
    loss = out.pow(2).mean()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 0.25)  # finding: clip-misplaced
    opt.zero_grad()
    loss.backward()
    opt.step()
