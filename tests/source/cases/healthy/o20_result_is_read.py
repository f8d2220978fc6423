"""strict=False with its result looked at, an optimizer's state, and strict loading."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = {"0.weight": torch.randn(8, 4)}
missing, unexpected = model.load_state_dict(state, strict=False)
print(missing, unexpected)
print(model.load_state_dict(state, strict=False))
if model.load_state_dict(state, strict=False).unexpected_keys:
    raise SystemExit("wrong checkpoint")
matching = {name: value for name, value in state.items() if name in model.state_dict()}
model.load_state_dict(matching, strict=False)
print(f"{len(matching)} of {len(model.state_dict())} loaded")
model.load_state_dict(model.state_dict())
optimizer.load_state_dict(optimizer.state_dict())
for step in range(10):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
