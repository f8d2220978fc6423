"""Route support tickets to a queue with a small transformer."""

import argparse
import os
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

PAD = 0
VOCAB = 200
QUEUES = ["billing", "delivery", "login", "refund", "outage", "other"]


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class TicketDataset(Dataset):
    """Tickets are lists of token ids; some words are typical of a queue."""

    def __init__(self, size, seed):
        rng = random.Random(seed)
        self.tickets = []
        for _ in range(size):
            queue = rng.randrange(len(QUEUES))
            length = rng.randint(8, 22)
            tokens = [rng.randint(80, VOCAB - 1) for _ in range(length)]
            for _ in range(max(2, length // 4)):
                tokens[rng.randrange(length)] = 1 + queue * 12 + rng.randrange(12)
            self.tickets.append((tokens, queue))

    def __len__(self):
        return len(self.tickets)

    def __getitem__(self, idx):
        tokens, queue = self.tickets[idx]
        return {"input_ids": torch.tensor(tokens), "label": queue}


def collate(examples):
    ids = nn.utils.rnn.pad_sequence([e["input_ids"] for e in examples], batch_first=True, padding_value=PAD)
    return {
        "input_ids": ids,
        "attention_mask": ids.ne(PAD),
        "labels": torch.tensor([e["label"] for e in examples]),
    }


class TicketRouter(nn.Module):
    def __init__(self, d_model=48, heads=2, layers=1, dropout=0.1):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, d_model, padding_idx=PAD)
        self.positions = nn.Embedding(32, d_model)
        layer = nn.TransformerEncoderLayer(
            d_model, heads, 2 * d_model, dropout=dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d_model)
        self.classifier = nn.Linear(d_model, len(QUEUES))
        self.log_probs = nn.LogSoftmax(dim=0)

    def forward(self, input_ids, attention_mask):
        positions = torch.arange(input_ids.size(1)).unsqueeze(0)
        hidden = self.tokens(input_ids) + self.positions(positions)
        hidden = self.norm(self.encoder(hidden, src_key_padding_mask=~attention_mask))
        weights = attention_mask.unsqueeze(-1).float()
        pooled = (hidden * weights).sum(1) / weights.sum(1)
        return self.log_probs(self.classifier(pooled))


class Runner:
    def __init__(self, args):
        self.args = args
        self.model = TicketRouter(args.d_model)
        self.criterion = nn.NLLLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=args.amp)
        self.train_loader = DataLoader(
            TicketDataset(args.train_size, args.seed), args.batch_size, shuffle=True, collate_fn=collate
        )
        self.test_loader = DataLoader(TicketDataset(300, args.seed + 1), 100, collate_fn=collate)
        self.step = 0

    def training_step(self, batch):
        log_probs = self.model(batch["input_ids"], batch["attention_mask"])
        loss = self.criterion(log_probs, batch["labels"])
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def accuracy(self):
        self.model.eval()
        hits = total = 0
        with torch.no_grad():
            for batch in self.test_loader:
                guess = self.model(batch["input_ids"], batch["attention_mask"]).argmax(-1)
                hits += (guess == batch["labels"]).sum().item()
                total += len(guess)
        return hits / total

    def fit(self):
        for epoch in range(self.args.epochs):
            self.model.train()
            for batch in self.train_loader:
                loss = self.training_step(batch)
                self.step += 1
                if self.step % self.args.log_every == 0:
                    print(f"epoch {epoch} step {self.step} loss {loss:.4f}")
            print(f"epoch {epoch} test accuracy {self.accuracy():.3f}")
        os.makedirs(self.args.output, exist_ok=True)
        torch.save(self.model.state_dict(), os.path.join(self.args.output, "router.pt"))


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--d-model", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--train-size", type=int, default=1600)
    parser.add_argument("--max-norm", type=float, default=5.0)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--amp", action="store_true", default=True)
    parser.add_argument("--output", default="checkpoints/router")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_args()
    seed_everything(options.seed)
    Runner(options).fit()
