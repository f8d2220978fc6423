import torch.nn as nn
import torch.nn.functional as F

class net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(2, 3)
        self.dec = nn.Linear(3, 3)

    def forward(self, x, y):
        self.zero_grad()
        return F.cross_entropy(self.dec(self.enc(x)), y)
