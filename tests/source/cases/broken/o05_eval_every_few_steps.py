import torch
import torch.nn.functional as F
from torch import nn


def evaluate(model, batches):
    model.eval()  # finding: wrong-mode
    with torch.no_grad():
        return sum(F.cross_entropy(model(x), y).item() for x, y in batches)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(20)]
    for epoch in range(3):
        model.train()
        for step, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step % 5 == 0:
                print(epoch, step, evaluate(model, batches))


if __name__ == "__main__":
    main()
