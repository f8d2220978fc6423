"""A small vision transformer recognises patterns under noise, a little shifted each time."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIDE = 16
PATCH = 4
CLASSES = 8


def patterns(size: int, seed: int) -> TensorDataset:
    """Eight fixed patterns, moved by up to one pixel, under noise; standardised."""
    shapes = torch.randn(CLASSES, 1, SIDE // 4, SIDE // 4, generator=torch.Generator().manual_seed(11))
    shapes = F.interpolate(shapes, scale_factor=4, mode="bilinear")
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (size,), generator=generator)
    shifts = torch.randint(-1, 2, (size, 2), generator=generator).tolist()
    moved = [shapes[label].roll(shift, dims=(1, 2)) for label, shift in zip(labels.tolist(), shifts, strict=True)]
    images = torch.stack(moved) + 0.8 * torch.randn(size, 1, SIDE, SIDE, generator=generator)
    return TensorDataset((images - images.mean()) / images.std(), labels)


class EncoderBlock(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, dim: int = 32, depth: int = 2, heads: int = 4, dropout: float = 0.05) -> None:
        super().__init__()
        self.patchify = nn.Conv2d(1, dim, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(torch.empty(1, (SIDE // PATCH) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*[EncoderBlock(dim, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, CLASSES)
        nn.init.trunc_normal_(self.positions, std=0.02)
        nn.init.trunc_normal_(self.class_token, std=0.02)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patchify(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    decay, no_decay = [], []
    for name, parameter in model.named_parameters():
        plain = parameter.ndim <= 1 or name in ("class_token", "positions")
        (no_decay if plain else decay).append(parameter)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]


def train_one_epoch(model, criterion, loader, optimizer, scheduler) -> list[float]:
    model.train()
    losses = []
    for images, labels in loader:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@torch.inference_mode()
def evaluate(model, loader) -> float:
    model.eval()
    right = sum((model(images).argmax(dim=1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    epochs = 4
    train_loader = DataLoader(patterns(1024, seed=1), batch_size=24, shuffle=True, drop_last=True)
    valid_loader = DataLoader(patterns(256, seed=2), batch_size=128)
    model = ViT()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.05), lr=2e-3)
    total, warmup = epochs * len(train_loader), 20
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=warmup),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - warmup),
        ],
        milestones=[warmup],
    )
    losses = []
    for epoch in range(epochs):
        losses += train_one_epoch(model, criterion, train_loader, optimizer, scheduler)
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, validation accuracy {evaluate(model, valid_loader):.1%}")
    print(f"loss {sum(losses[:10]) / 10:.3f} -> {sum(losses[-10:]) / 10:.3f}")


if __name__ == "__main__":
    main()
