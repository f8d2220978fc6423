import torch
from torch import nn
import torch.nn.functional as F

enc = nn.Linear(8, 4)
enc.load_state_dict(torch.load("enc.pt"))
codes = torch.randn(16, 4)
codes.requires_grad_()
opt = torch.optim.Adam([codes])
for i in range(10):
    with torch.no_grad():
        z = enc(torch.randn(4, 8))
    q = codes[torch.cdist(z, codes).argmin(1)]
    loss = F.mse_loss(q, z)
    opt.zero_grad()
    loss.backward()
    opt.step()
