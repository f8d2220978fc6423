import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sam import SAM

model = nn.Linear(4, 3)
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
for inputs, targets in [(torch.randn(8, 4), torch.randint(0, 3, (8,)))] * 4:
    loss = cross_entropy(model(inputs), targets)
    loss.mean().backward()
    optimizer.first_step(zero_grad=True)
    cross_entropy(model(inputs), targets).mean().backward()
    optimizer.second_step(zero_grad=True)
