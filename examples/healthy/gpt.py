"""A small pre-norm GPT learns to finish sums such as "07+45=52;", one character after the other."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

ALPHABET = "0123456789+=;"


@dataclass
class Config:
    block_size: int = 26
    layers: int = 2
    heads: int = 4
    width: int = 40
    dropout: float = 0.0
    steps: int = 160
    warmup: int = 20
    batch_size: int = 16
    lr: float = 2e-3
    weight_decay: float = 0.1
    clip: float = 1.0


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(ALPHABET), config.width)
        self.positions = nn.Embedding(config.block_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, len(ALPHABET), bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.initialise)
        for name, parameter in self.named_parameters():
            if name.endswith(("project.weight", "mlp.2.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers))

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_sums(count: int, generator: torch.Generator) -> torch.Tensor:
    codes = {character: code for code, character in enumerate(ALPHABET)}
    pairs = torch.randint(0, 50, (count, 2), generator=generator).tolist()
    return torch.tensor([codes[c] for a, b in pairs for c in f"{a:02}+{b:02}={a + b:02};"])


def get_batch(data: torch.Tensor, config: Config) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - config.block_size, (config.batch_size,)).tolist()
    x = torch.stack([data[i : i + config.block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + config.block_size] for i in starts])
    return x, y


def get_lr(step: int, config: Config) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / (config.steps - config.warmup)
    return config.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


def configure_optimizer(model: nn.Module, config: Config) -> torch.optim.AdamW:
    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": config.weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))


def main() -> None:
    torch.manual_seed(1337)
    config = Config()
    generator = torch.Generator().manual_seed(1337)
    train_data, valid_data = make_sums(4000, generator), make_sums(400, generator)
    model = GPT(config)
    optimizer = configure_optimizer(model, config)
    losses = []
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step, config)
        _, loss = model(*get_batch(train_data, config))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 40 == 0:
            model.eval()
            with torch.no_grad():
                valid = sum(model(*get_batch(valid_data, config))[1].item() for _ in range(4)) / 4
            model.train()
            print(f"step {step + 1}: train {losses[-1]:.3f}, valid {valid:.3f}")
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
