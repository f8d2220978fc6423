"""Half precision with a gradient scaler: gradients are unscaled before they are clipped."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES = 16


def teacher_data(size: int, classes: int, seed: int) -> TensorDataset:
    """Labels that a fixed random network gives, about equally often each."""
    generator = torch.Generator().manual_seed(123)
    inner = torch.randn(FEATURES, 32, generator=generator) / FEATURES**0.5
    outer = torch.randn(32, classes, generator=generator)
    features = torch.randn(size, FEATURES, generator=torch.Generator().manual_seed(seed))
    scores = torch.relu(features @ inner) @ outer
    return TensorDataset(features, (scores - scores.mean(0)).argmax(1))


def make_model(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def evaluate(model: nn.Module, loader: DataLoader, dtype: torch.dtype) -> float:
    model.eval()
    right = 0
    with torch.inference_mode(), torch.autocast("cpu", dtype=dtype):
        for features, labels in loader:
            right += (model(features).argmax(1) == labels).sum().item()
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_loader = DataLoader(teacher_data(2048, args.classes, seed=1), batch_size=args.batch_size, shuffle=True)
    valid_loader = DataLoader(teacher_data(256, args.classes, seed=2), batch_size=128)
    model = make_model(args.classes)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cpu")
    history = []
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for features, labels in train_loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = criterion(model(features), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            scaler.step(optimizer)
            scaler.update()
            total += loss.item()
        history.append(total / len(train_loader))
        accuracy = evaluate(model, valid_loader, torch.float16)
        print(f"epoch {epoch + 1}: {history[-1]:.3f}, accuracy {accuracy:.1%}, scale {scaler.get_scale():.0f}")
    print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")


if __name__ == "__main__":
    main()
