import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.rand(4, 2)
noise = torch.normal(0.0, 1.0, size=(4, 1))
celsius = torch.tensor([[-4.0], [12.5], [30.0], [-11.0]])
net = nn.Linear(2, 1)
optimizer = torch.optim.Adam(net.parameters())
for step in range(20):
    optimizer.zero_grad()
    warm = torch.relu(net(x))  # finding: activation-on-logits
    near = torch.tanh(net(x))  # finding: activation-on-logits
    noisy = torch.sigmoid(net(x))  # finding: activation-on-logits
    loss = F.l1_loss(warm, celsius) + F.mse_loss(near, celsius) + F.mse_loss(noisy, noise)
    loss.backward()
    optimizer.step()
