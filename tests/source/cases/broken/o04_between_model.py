import torch
from torch import nn
from tqdm import tqdm


def run(model, loader, lossf, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(3):
        bar = tqdm(loader)
        for x, y in bar:
            loss = lossf(model(x), y)
            loss.backward()
            model.zero_grad()  # finding: step-order
            optimizer.step()
            bar.set_postfix(loss=loss.item())


run(nn.Linear(4, 1), [(torch.randn(2, 4), torch.randn(2, 1))], nn.MSELoss(), 1e-3)
