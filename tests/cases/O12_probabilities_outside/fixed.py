"""Tag the entities of made-up log lines: a bidirectional GRU over tokens, BIO tags per token."""

import argparse
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

TAGS = ["O", "B-HOST", "I-HOST", "B-USER", "I-USER", "B-PATH", "I-PATH", "B-CODE", "I-CODE"]
PAD_TOKEN = 0
PAD_TAG = -100
VOCABULARY = 200
TRIGGERS = {1: (10, 20), 3: (20, 30), 5: (30, 40), 7: (40, 50)}


def seed_everything(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def make_line(rng):
    tokens, tags = [], []
    while len(tokens) < rng.randint(8, 20):
        if rng.random() < 0.4:
            tag = rng.choice(list(TRIGGERS))
            tokens.append(rng.randrange(*TRIGGERS[tag]))
            tags.append(tag)
            for _ in range(rng.randint(0, 2)):
                tokens.append(rng.randrange(50, 90))
                tags.append(tag + 1)
        else:
            tokens.append(rng.randrange(90, VOCABULARY))
            tags.append(0)
    return tokens, tags


class LogLines(Dataset):
    def __init__(self, count, seed):
        rng = random.Random(seed)
        self.lines = [make_line(rng) for _ in range(count)]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        tokens, tags = self.lines[index]
        return torch.tensor(tokens), torch.tensor(tags)


def collate(lines):
    tokens, tags = zip(*lines, strict=True)
    return {
        "tokens": pad_sequence(tokens, batch_first=True, padding_value=PAD_TOKEN),
        "tags": pad_sequence(tags, batch_first=True, padding_value=PAD_TAG),
        "lengths": torch.tensor([len(line) for line in tokens]),
    }


class Tagger(nn.Module):
    def __init__(self, vocabulary, tags, width=48):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PAD_TOKEN)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(2 * width, tags)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=tokens.shape[1])
        return self.classifier(self.dropout(hidden))


class Trainer:
    def __init__(self, model, args):
        self.model = model
        self.args = args
        self.optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
        self.best = 0.0

    def train_step(self, batch):
        logits = self.model(batch["tokens"], batch["lengths"])
        probs = torch.softmax(logits, dim=-1)
        loss = F.cross_entropy(logits.transpose(1, 2), batch["tags"], ignore_index=PAD_TAG)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
        self.optimizer.step()
        confidence = probs.detach().amax(-1)[batch["tags"] != PAD_TAG].mean()
        return loss.item(), confidence.item()

    @torch.no_grad()
    def evaluate(self, loader):
        self.model.eval()
        right = total = 0
        for batch in loader:
            predicted = self.model(batch["tokens"], batch["lengths"]).argmax(-1)
            known = batch["tags"] != PAD_TAG
            right += (predicted == batch["tags"])[known].sum().item()
            total += known.sum().item()
        self.model.train()
        return right / total

    def fit(self, train_loader, dev_loader):
        self.model.train()
        for epoch in range(1, self.args.epochs + 1):
            losses, confidences = zip(*(self.train_step(batch) for batch in train_loader), strict=True)
            accuracy = self.evaluate(dev_loader)
            print(
                f"epoch {epoch:2d}  loss {sum(losses) / len(losses):.4f}  "
                f"confidence {sum(confidences) / len(confidences):.3f}  dev accuracy {accuracy:.3f}"
            )
            if accuracy > self.best:
                self.best = accuracy
                self.save()

    def save(self):
        folder = Path(self.args.output)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.model.state_dict(), folder / "tagger.pt")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--max-norm", type=float, default=5.0)
    parser.add_argument("--output", default="checkpoints")
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


def main():
    args = parse_args()
    seed_everything(args.seed)
    train_loader = DataLoader(LogLines(1600, seed=1), args.batch_size, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(LogLines(200, seed=2), 100, collate_fn=collate)
    trainer = Trainer(Tagger(VOCABULARY, len(TAGS)), args)
    trainer.fit(train_loader, dev_loader)
    print(f"best dev accuracy {trainer.best:.3f}")


if __name__ == "__main__":
    main()
