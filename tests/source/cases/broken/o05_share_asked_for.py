"""A condition on the share of dropout is no condition on the mode."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.p = p

    def forward(self, x):
        x = self.first(x)
        if self.p > 0:
            x = F.dropout(x, self.p)  # finding: wrong-mode
        share = self.p
        return self.last(F.dropout(x, share))  # finding: wrong-mode
