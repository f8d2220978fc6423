import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(2, 3)
opt = torch.optim.Adam(model.parameters())


def run(batch):
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    if loss.requires_grad:
        opt.zero_grad()
        loss.backward()


for batch in loader:
    run(batch)
    opt.step()
    with torch.no_grad():
        model.eval()
        run(next(val))
        model.train()
