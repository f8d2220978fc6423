import torch
from torch import nn
import torch.nn.functional as F
import lightning as L


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 3)
        self.loss_fn = nn.CrossEntropyLoss()

    def forward(self, x):
        return torch.softmax(self.net(x), dim=-1)  # finding: double-softmax

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        loss = self.loss_fn(y_hat, y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


L.Trainer(max_epochs=1).fit(Lit())
