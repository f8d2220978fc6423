import torch
from torch import nn
import torch.nn.functional as F


def train_batch(model, opt, x, y):
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    opt.step()  # finding: step-order
    return loss.item()


def train(model, loader, epochs=3):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for e in range(epochs):
        tot = 0
        for x, y in loader:
            tot += train_batch(model, opt, x, y)
        print(e, tot)


if __name__ == "__main__":
    train(nn.Linear(4, 2), [(torch.randn(2, 4), torch.randint(0, 2, (2,)))])
