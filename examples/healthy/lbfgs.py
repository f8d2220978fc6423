"""Fit a surface with a small network, on all data at once, with L-BFGS and a line search."""

import torch
from torch import nn

STEPS = 60


def surface(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    points = 2 * torch.rand(size, 2, generator=generator) - 1
    heights = torch.sin(3 * points[:, 0]) * torch.cos(2 * points[:, 1])
    heights = heights + 0.02 * torch.randn(size, generator=generator)
    return points, heights.unsqueeze(1)


class SurfaceNet(nn.Module):
    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.net(points)


def main() -> None:
    torch.manual_seed(0)
    points, heights = surface(400, seed=1)
    test_points, test_heights = surface(200, seed=2)
    mean, std = heights.mean(), heights.std()
    heights, test_heights = (heights - mean) / std, (test_heights - mean) / std

    model = SurfaceNet()
    criterion = nn.MSELoss()
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=1.0, max_iter=4, history_size=10, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = criterion(model(points), heights)
        loss.backward()
        return loss

    losses = []
    for step in range(STEPS):
        model.train()
        loss = optimizer.step(closure)
        losses.append(loss.item())
        if (step + 1) % 15 == 0:
            model.eval()
            with torch.no_grad():
                test_loss = criterion(model(test_points), test_heights).item()
            print(f"step {step + 1}: train {losses[-1]:.5f}, test {test_loss:.5f}")
    print(f"loss {losses[0]:.5f} -> {losses[-1]:.5f}")


if __name__ == "__main__":
    main()
