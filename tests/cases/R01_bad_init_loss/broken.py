"""Character model with a GRU body."""

import argparse
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

SYLLABLES = ["ka", "to", "mi", "re", "shu", "no", "ha", "ri", "sen", "ya", "mo", "ku"]


def make_corpus(n_words, seed):
    """Words of two to four syllables out of a lexicon, in a loose order."""
    rnd = random.Random(seed)
    lexicon = ["".join(rnd.choices(SYLLABLES, k=rnd.randint(2, 4))) for _ in range(40)]
    follow = {word: rnd.sample(lexicon, 3) for word in lexicon}
    word, words = lexicon[0], []
    for _ in range(n_words):
        words.append(word)
        word = rnd.choice(follow[word])
    return " ".join(words)


class Vocabulary:
    def __init__(self, text):
        self.chars = sorted(set(text))
        self.index = {c: i for i, c in enumerate(self.chars)}

    def __len__(self):
        return len(self.chars)

    def encode(self, text):
        return torch.tensor([self.index[c] for c in text])

    def decode(self, ids):
        return "".join(self.chars[i] for i in ids)


class CharModel(nn.Module):
    def __init__(self, vocab_size, dim, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)
        self.decoder = nn.Linear(dim, vocab_size)
        nn.init.normal_(self.decoder.weight, std=dim**0.5)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, ids, state=None):
        x = self.drop(self.embed(ids))
        out, state = self.gru(x, state)
        return self.decoder(self.norm(out)), state


def get_batch(stream, batch_size, block):
    starts = torch.randint(0, len(stream) - block - 1, (batch_size,))
    rows = torch.stack([stream[s : s + block + 1] for s in starts.tolist()])
    return rows[:, :-1], rows[:, 1:]


def lm_loss(model, inputs, targets):
    logits, _ = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate(model, stream, args, rounds=10):
    model.eval()
    losses = [lm_loss(model, *get_batch(stream, args.batch_size, args.block)).item() for _ in range(rounds)]
    model.train()
    return sum(losses) / len(losses)


@torch.no_grad()
def generate(model, vocab, length=60):
    model.eval()
    ids, state, out = torch.tensor([[0]]), None, []
    for _ in range(length):
        logits, state = model(ids, state)
        ids = torch.multinomial(F.softmax(logits[:, -1], dim=-1), 1)
        out.append(ids.item())
    model.train()
    return vocab.decode(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--block", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--iters", type=int, default=600)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--eval-every", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--out-dir", default="runs/charmodel")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    text = make_corpus(6000, args.seed)
    vocab = Vocabulary(text)
    stream = vocab.encode(text)
    cut = int(0.9 * len(stream))
    train_stream, val_stream = stream[:cut], stream[cut:]

    model = CharModel(len(vocab), args.dim)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    for it in range(args.iters):
        loss = lm_loss(model, *get_batch(train_stream, args.batch_size, args.block))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if it % 20 == 0:
            print(f"iter {it}: loss {loss.item():.4f}")
        if (it + 1) % args.eval_every == 0:
            print(f"iter {it + 1}: val loss {estimate(model, val_stream, args):.4f}")
    print(generate(model, vocab))

    os.makedirs(args.out_dir, exist_ok=True)
    torch.save({"model": model.state_dict(), "chars": vocab.chars}, os.path.join(args.out_dir, "ckpt.pt"))


if __name__ == "__main__":
    main()
