import argparse
import math
import os
import time

import torch
import torch.nn as nn
from torch.nn import functional as F

# a toy language: arithmetic statements such as "17+25=42;" strung together
DIGITS = "0123456789+=;"
stoi = {c: i for i, c in enumerate(DIGITS)}


def build_corpus(n_statements, generator):
    pieces = []
    a = torch.randint(0, 30, (n_statements,), generator=generator)
    b = torch.randint(0, 5, (n_statements,), generator=generator)
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        pieces.append(f"{x}+{y}={x + y};")
    return torch.tensor([stoi[c] for c in "".join(pieces)])


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (
            part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for part in self.qkv(x).split(C, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class TinyLM(nn.Module):
    def __init__(self, vocab, block_size, n_embd, n_head, n_layer):
        super().__init__()
        self.tok = nn.Embedding(vocab, n_embd)
        self.pos = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block(n_embd, n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab, bias=False)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        return self.head(self.ln_f(self.blocks(x)))


def get_batch(data, batch_size, block_size):
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + block_size + 1] for i in ix])
    return x, y


def warmup_then_decay(warmup, total):
    def factor(step):
        ramp = min(1.0, (step + 1) / warmup)
        remaining = (total - step - 1) // total
        return ramp * remaining

    return factor


@torch.no_grad()
def estimate_loss(model, data, args, batches=10):
    model.eval()
    total = 0.0
    for _ in range(batches):
        x, y = get_batch(data, args.batch_size, args.block_size)
        total += F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
    model.train()
    return total / batches


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--max_iters", type=int, default=500)
    ap.add_argument("--warmup_iters", type=int, default=40)
    ap.add_argument("--batch_size", type=int, default=16)
    ap.add_argument("--block_size", type=int, default=32)
    ap.add_argument("--n_embd", type=int, default=48)
    ap.add_argument("--n_head", type=int, default=4)
    ap.add_argument("--n_layer", type=int, default=2)
    ap.add_argument("--learning_rate", type=float, default=3e-3)
    ap.add_argument("--grad_clip", type=float, default=1.0)
    ap.add_argument("--eval_interval", type=int, default=100)
    ap.add_argument("--out_dir", default="runs")
    ap.add_argument("--seed", type=int, default=1337)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    train_data, val_data = build_corpus(6000, generator), build_corpus(500, generator)

    model = TinyLM(len(DIGITS), args.block_size, args.n_embd, args.n_head, args.n_layer)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
        lr=args.learning_rate,
        betas=(0.9, 0.95),
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_then_decay(args.warmup_iters, args.max_iters))

    best = math.inf
    os.makedirs(args.out_dir, exist_ok=True)
    t0 = time.time()
    for it in range(args.max_iters):
        x, y = get_batch(train_data, args.batch_size, args.block_size)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        optimizer.step()
        scheduler.step()
        if it % 50 == 0:
            print(f"iter {it}: loss {loss.item():.4f}, time {time.time() - t0:.1f}s")
        if (it + 1) % args.eval_interval == 0:
            val = estimate_loss(model, val_data, args)
            print(f"iter {it}: val loss {val:.4f}")
            if val < best:
                best = val
                torch.save({"model": model.state_dict(), "iter": it}, os.path.join(args.out_dir, "ckpt.pt"))


if __name__ == "__main__":
    main()
