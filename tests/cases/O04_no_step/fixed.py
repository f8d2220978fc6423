import argparse
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD_TAG = -100


class BracketData(Dataset):
    """Token sequences; a token's tag says whether it repeats, continues or breaks the pattern before it."""

    def __init__(self, count, vocab=20, seed=0):
        rnd = random.Random(seed)
        self.samples = [self._make(rnd, vocab) for _ in range(count)]

    @staticmethod
    def _make(rnd, vocab):
        length = rnd.randint(6, 18)
        toks, tags = [rnd.randrange(1, vocab)], [0]
        for _ in range(length - 1):
            kind = rnd.randrange(3)
            prev = toks[-1]
            if kind == 0:
                nxt = prev
            elif kind == 1:
                nxt = prev % (vocab - 1) + 1
            else:
                nxt = (prev + rnd.randrange(2, vocab - 3)) % (vocab - 1) + 1
            toks.append(nxt)
            tags.append(kind)
        return torch.tensor(toks), torch.tensor(tags)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def collate(samples):
    toks, tags = zip(*samples, strict=True)
    return {
        "tokens": pad_sequence(toks, batch_first=True, padding_value=0),
        "tags": pad_sequence(tags, batch_first=True, padding_value=PAD_TAG),
        "lengths": torch.tensor([len(t) for t in toks]),
    }


class Tagger(nn.Module):
    def __init__(self, vocab=20, emb=24, hid=48, tags=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb, padding_idx=0)
        self.rnn = nn.GRU(emb, hid, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(hid, tags)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.emb(tokens), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=tokens.size(1))
        return self.out(self.drop(hidden))


def token_accuracy(logits, tags):
    keep = tags != PAD_TAG
    return (logits.argmax(-1)[keep] == tags[keep]).float().mean().item()


def optimize(loss, model, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def run_epoch(model, loader, criterion, args, optimizer=None, scaler=None):
    training = optimizer is not None
    model.train(training)
    losses, accs = [], []
    with torch.set_grad_enabled(training):
        for i, batch in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
                logits = model(batch["tokens"], batch["lengths"])
                loss = criterion(logits.flatten(0, 1).float(), batch["tags"].flatten())
            if training:
                optimize(loss, model, optimizer, scaler, args.clip)
                if i % args.log_interval == 0:
                    print(f"    batch {i:3d}  loss {loss.item():.4f}")
            losses.append(loss.item())
            accs.append(token_accuracy(logits.detach(), batch["tags"]))
    return sum(losses) / len(losses), sum(accs) / len(accs)


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", default=5, type=int)
    ap.add_argument("--batch-size", default=32, type=int)
    ap.add_argument("--lr", default=4e-3, type=float)
    ap.add_argument("--clip", default=5.0, type=float)
    ap.add_argument("--amp", action="store_true", help="bfloat16 autocast and gradient scaling")
    ap.add_argument("--log-interval", default=25, type=int)
    ap.add_argument("--seed", default=3, type=int)
    return ap.parse_args()


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(BracketData(3200, seed=1), args.batch_size, shuffle=True, collate_fn=collate)
    valid_loader = DataLoader(BracketData(400, seed=2), 100, collate_fn=collate)
    model = Tagger()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD_TAG)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.98))
    scaler = torch.amp.GradScaler("cpu") if args.amp else None
    for epoch in range(args.epochs):
        train_loss, train_acc = run_epoch(model, train_loader, criterion, args, optimizer, scaler)
        valid_loss, valid_acc = run_epoch(model, valid_loader, criterion, args)
        print(f"epoch {epoch:2d} | train {train_loss:.4f} ({train_acc:.1%}) | valid {valid_loss:.4f} ({valid_acc:.1%})")


if __name__ == "__main__":
    main()
