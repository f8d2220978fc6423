import lightning as L
import torch
from torch import nn


class Tagger(L.LightningModule):
    def __init__(self, vocabulary, labels):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocabulary, 64)
        self.out = nn.Linear(64, labels)
        self.activation = nn.Sigmoid()
        self.criterion = nn.BCEWithLogitsLoss(reduction="mean")

    def forward(self, tokens):
        return self.activation(self.out(self.embed(tokens)))  # finding: sigmoid-bce

    def training_step(self, batch, batch_idx):
        tokens, labels = batch
        return self.criterion(self(tokens), labels.float())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)
