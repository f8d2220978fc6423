import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Tagger(nn.Module):
    def __init__(self, vocabulary, tags):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32)
        self.hidden = nn.Sequential(nn.Linear(32, 64), nn.GELU())
        self.tag = nn.Linear(64, tags)

    def forward(self, tokens):
        return self.tag(self.hidden(self.embedding(tokens)))


class Trainer:
    def __init__(self, dataset):
        self.loader = DataLoader(dataset, batch_size=8, shuffle=True)
        self.model = Tagger(1000, 12)
        self.optimizer = optim.Adam(self.model.parameters())
        self.criterion = nn.NLLLoss(ignore_index=0)

    def run(self):
        for tokens, tags in self.loader:
            self.optimizer.zero_grad()
            scores = self.model(tokens)
            loss = self.criterion(scores.view(-1, 12), tags.view(-1))  # finding: nll-needs-log-probs
            loss = loss + F.nll_loss(F.softmax(scores, -1).transpose(1, 2), tags)  # finding: nll-needs-log-probs
            loss.backward()
            self.optimizer.step()
