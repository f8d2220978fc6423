import torch
from torch import nn

m = nn.LSTM(4, 4)
opt = torch.optim.Adam(m.parameters())
for i in range(100):
    out, _ = m(torch.randn(5, 2, 4))
    loss = out.pow(2).mean() / 4
    loss.backward()
    if i % 4 == 3:
        opt.step()
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)  # finding: clip-misplaced
        opt.zero_grad()
