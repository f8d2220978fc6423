"""A small transformer language model over melodies written as note tokens."""

import math
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class MelodyConfig:
    n_notes: int = 24
    block_size: int = 24
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 48
    dropout: float = 0.0


class SelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (part.view(b, t, self.n_head, c // self.n_head).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = SelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(), nn.Linear(4 * config.n_embd, config.n_embd)
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class MelodyGPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.n_notes, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.Sequential(*[Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.n_notes, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        positions = torch.arange(idx.size(1), device=idx.device)
        x = self.ln_f(self.blocks(self.wte(idx) + self.wpe(positions)))
        logits = self.lm_head(x)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0):
        for _ in range(max_new_tokens):
            logits, _ = self(idx[:, -self.config.block_size :])
            probs = F.softmax(logits[:, -1] / temperature, dim=-1)
            idx = torch.cat([idx, torch.multinomial(probs, 1)], dim=1)
        return idx


def compose(length, n_notes, seed):
    """A walk over the scale: mostly small steps in the running direction, sometimes a leap."""
    rng = np.random.default_rng(seed)
    notes, note, direction = np.empty(length, dtype=np.int64), n_notes // 2, 1
    for i in range(length):
        notes[i] = note
        move = rng.choice([1, 2, 4, 7], p=[0.55, 0.25, 0.12, 0.08])
        if rng.random() < 0.15:
            direction = -direction
        note = (note + direction * move) % n_notes
    return torch.from_numpy(notes)


def get_batch(data, config, batch_size):
    ix = torch.randint(len(data) - config.block_size - 1, (batch_size,)).tolist()
    x = torch.stack([data[i : i + config.block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + config.block_size] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss(model, splits, batch_size, rounds=8):
    model.eval()
    out = {}
    for name, data in splits.items():
        losses = [model(*get_batch(data, model.config, batch_size))[1].item() for _ in range(rounds)]
        out[name] = sum(losses) / rounds
    model.train()
    return out


def lr_at(it, peak=3e-3, warmup=30, total=700):
    if it < warmup:
        return peak * (it + 1) / warmup
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (it - warmup) / (total - warmup))))


def main(max_iters=700, batch_size=24, seed=2):
    torch.manual_seed(seed)
    config = MelodyConfig()
    notes = compose(20000, config.n_notes, seed)
    splits = {"train": notes[:18000], "val": notes[18000:]}
    model = MelodyGPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)

    t0 = time.time()
    for it in range(max_iters):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(it, total=max_iters)
        _, loss = model(*get_batch(splits["train"], config, batch_size))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if it % 25 == 0:
            print(f"iter {it}: loss {loss.item():.4f}, {time.time() - t0:.1f} s")
        if (it + 1) % 175 == 0:
            report = estimate_loss(model, splits, batch_size)
            print(f"iter {it + 1}: train {report['train']:.4f}, val {report['val']:.4f}")

    sample = model.generate(torch.tensor([[config.n_notes // 2]]), 40)
    print("sample:", sample[0].tolist())
    os.makedirs("checkpoints", exist_ok=True)
    torch.save(model.state_dict(), "checkpoints/melody.pt")


if __name__ == "__main__":
    main()
