import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

import pytorch_lightning as pl
class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__(); self.net = nn.Linear(3, 4); self.automatic_optimization = False
    def training_step(self, batch, i):
        x, y = batch
        opt = self.optimizers()
        loss = F.cross_entropy(F.softmax(self.net(x), dim=1), y)  # finding: double-softmax
        self.manual_backward(loss)
        opt.zero_grad()  # finding: step-order
        opt.step()
