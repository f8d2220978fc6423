#!/usr/bin/env python
"""Ticket routing: bag-of-tokens documents of different lengths, one queue each."""

import logging
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
log = logging.getLogger("router")

VOCAB = 600
QUEUES = 12
DIM = 12
CFG = {
    "n_train": 4000,
    "n_val": 500,
    "batch_size": 40,
    "epochs": 6,
    "lr": 5e-3,
    "seed": 5,
    "ckpt": "runs/router/best.pt",
}


def make_documents(n, rng):
    """Documents mix common words with words that are typical of their queue."""
    typical = np.arange(QUEUES * 20).reshape(QUEUES, 20)
    docs, queues = [], rng.integers(0, QUEUES, n)
    for q in queues:
        length = rng.integers(8, 30)
        common = rng.integers(QUEUES * 20, VOCAB, length)
        own = rng.choice(typical[q], length)
        docs.append(np.where(rng.random(length) < 0.3, own, common))
    return docs, queues


class TokenEncoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.table = nn.Embedding(vocab, dim)
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.Tanh())

    def forward(self, flat_tokens):
        e = self.table(flat_tokens)
        return e + self.proj(e)


def pool_documents(states, lengths):
    """Mean and max over the tokens of each document; `states` holds all documents one after the other."""
    bounds = np.cumsum(lengths)[:-1]
    pieces = np.split(states.detach().numpy(), bounds)
    pooled = np.stack([np.concatenate([p.mean(0), p.max(0)]) for p in pieces])
    return torch.from_numpy(pooled)


class Router(nn.Module):
    def __init__(self, vocab=VOCAB, dim=DIM, queues=QUEUES):
        super().__init__()
        self.encoder = TokenEncoder(vocab, dim)
        self.head = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, queues))

    def forward(self, flat_tokens, lengths):
        states = self.encoder(flat_tokens)
        return self.head(pool_documents(states, lengths))


def iterate(docs, queues, batch_size, rng=None):
    order = np.arange(len(docs)) if rng is None else rng.permutation(len(docs))
    for lo in range(0, len(order), batch_size):
        idx = order[lo : lo + batch_size]
        chosen = [docs[i] for i in idx]
        lengths = np.array([len(d) for d in chosen])
        yield torch.from_numpy(np.concatenate(chosen)), lengths, torch.from_numpy(queues[idx])


def evaluate(net, docs, queues):
    net.eval()
    hits = 0
    with torch.no_grad():
        for tokens, lengths, target in iterate(docs, queues, 250):
            hits += int((net(tokens, lengths).argmax(-1) == target).sum())
    return hits / len(docs)


def main(cfg):
    torch.manual_seed(cfg["seed"])
    rng = np.random.default_rng(cfg["seed"])
    train_docs, train_q = make_documents(cfg["n_train"], rng)
    val_docs, val_q = make_documents(cfg["n_val"], rng)

    net = Router()
    criterion = nn.CrossEntropyLoss()
    optim = torch.optim.Adam(net.parameters(), lr=cfg["lr"])
    best, step = 0.0, 0
    for epoch in range(cfg["epochs"]):
        net.train()
        window = []
        for tokens, lengths, target in iterate(train_docs, train_q, cfg["batch_size"], rng):
            optim.zero_grad()
            loss = criterion(net(tokens, lengths), target)
            loss.backward()
            optim.step()
            window.append(loss.item())
            step += 1
            if step % 50 == 0:
                log.info("step %4d  loss %.4f", step, float(np.mean(window[-50:])))
        acc = evaluate(net, val_docs, val_q)
        log.info("epoch %d  loss %.4f  val_acc %.3f", epoch, float(np.mean(window)), acc)
        if acc > best:
            best = acc
            path = Path(cfg["ckpt"])
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(net.state_dict(), path)
    log.info("best val_acc %.3f", best)


if __name__ == "__main__":
    main(CFG)
