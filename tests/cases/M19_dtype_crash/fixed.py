#!/usr/bin/env python
"""Which of a protein's regions bind? Multi-label prediction from the one-hot sequence with a GRU."""

import logging
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

logger = logging.getLogger(__name__)

ALPHABET = "ACDEFGHIKLMNPQRSTVWY"
MOTIFS = ("WW", "CH", "KR", "DE", "YF")
DEFAULTS = {
    "length": 24,
    "n_train": 1920,
    "n_test": 320,
    "hidden": 48,
    "batch": 32,
    "lr": 5e-3,
    "epochs": 5,
    "seed": 77,
}


def make_sequences(n, length, rng):
    letters = rng.integers(0, len(ALPHABET), (n, length))
    present = rng.random((n, len(MOTIFS))) < 0.4
    for row in range(n):
        slots = rng.permutation(length // 2)
        for m, motif in enumerate(MOTIFS):
            if present[row, m]:
                at = 2 * slots[m]
                letters[row, at : at + 2] = [ALPHABET.index(c) for c in motif]
    found = np.zeros((n, len(MOTIFS)), dtype=np.int64)
    for m, motif in enumerate(MOTIFS):
        first, second = (ALPHABET.index(c) for c in motif)
        found[:, m] = ((letters[:, :-1] == first) & (letters[:, 1:] == second)).any(axis=1)
    return letters, found


class ProteinDataset(Dataset):
    def __init__(self, letters, motifs):
        self.letters = letters
        self.motifs = motifs

    def __len__(self):
        return len(self.letters)

    def __getitem__(self, index):
        sequence = torch.as_tensor(self.letters[index])
        return {
            "sequence": F.one_hot(sequence, len(ALPHABET)).float(),
            "motifs": torch.as_tensor(self.motifs[index], dtype=torch.float32),
        }


class MotifFinder(nn.Module):
    def __init__(self, n_letters, hidden, n_motifs):
        super().__init__()
        self.project = nn.Linear(n_letters, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, n_motifs)

    def forward(self, sequence):
        x = torch.relu(self.project(sequence))
        states, _ = self.gru(x)
        return self.head(states.amax(dim=1))


class Runner:
    def __init__(self, options):
        self.options = options
        torch.manual_seed(options["seed"])
        rng = np.random.default_rng(options["seed"])
        train = ProteinDataset(*make_sequences(options["n_train"], options["length"], rng))
        test = ProteinDataset(*make_sequences(options["n_test"], options["length"], rng))
        self.train_loader = DataLoader(train, batch_size=options["batch"], shuffle=True)
        self.test_loader = DataLoader(test, batch_size=160)
        self.model = MotifFinder(len(ALPHABET), options["hidden"], len(MOTIFS))
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=options["lr"])

    def train_epoch(self, epoch):
        self.model.train()
        for i, batch in enumerate(self.train_loader):
            scores = self.model(batch["sequence"])
            loss = self.criterion(scores, batch["motifs"])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if i % 20 == 0:
                logger.info("epoch %d batch %d loss %.4f", epoch, i, loss.item())

    @torch.inference_mode()
    def test(self):
        self.model.eval()
        exact, seen = 0, 0
        for batch in self.test_loader:
            guess = self.model(batch["sequence"]) > 0
            exact += (guess == batch["motifs"].bool()).all(dim=1).sum().item()
            seen += len(guess)
        return exact / seen

    def run(self, folder="runs/motifs"):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        best = -1.0
        for epoch in range(self.options["epochs"]):
            self.train_epoch(epoch)
            score = self.test()
            logger.info("epoch %d exact match %.3f", epoch, score)
            if score > best:
                best = score
                torch.save(self.model.state_dict(), folder / "best.pt")
        return best


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    Runner(DEFAULTS).run()
