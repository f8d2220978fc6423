import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 64), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.head = nn.Linear(64, outputs)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    train = TensorDataset(torch.randn(256, 20), torch.randint(0, 2, (256, 4)).float())
    loader = DataLoader(train, batch_size=32, shuffle=True)
    net = Net(20, 4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    for _ in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            logits = net(x)
            loss = F.binary_cross_entropy_with_logits(torch.sigmoid(logits), y)  # finding: sigmoid-bce
            loss = loss + 0.1 * F.binary_cross_entropy(logits.sigmoid().view(-1), y.view(-1))  # finding: sigmoid-bce
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
