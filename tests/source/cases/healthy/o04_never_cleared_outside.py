"""A method that is called once for each optimizer: the file knows no zero_grad, but a virtual loss clears."""

import torch
from elsewhere import virtual_loss
from torch import nn


class Trainer:
    def __init__(self):
        self.net = nn.Linear(4, 2)
        self.optim = torch.optim.Adam(self.net.parameters())

    def update(self, x):
        loss = virtual_loss(self.net, x)
        loss.backward()
        self.optim.step()
