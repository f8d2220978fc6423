"""Frozen before training, toggled by turns, rebuilt, or with gradients that are None."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
target = copy.deepcopy(critic)
target.requires_grad_(False)
actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
for step in range(10):
    state = torch.randn(8, 4)
    critic_opt.zero_grad(set_to_none=False)
    F.mse_loss(critic(state), target(state)).backward()
    critic_opt.step()
    critic.requires_grad_(False)
    actor_opt.zero_grad(set_to_none=False)
    (actor(state).sum() - critic(state).sum()).backward()
    actor_opt.step()
    critic.requires_grad_(True)


def fit(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(8, 4)
        optimizer.zero_grad(set_to_none=False)
        F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()


body, head = nn.Linear(4, 8), nn.Linear(8, 1)
model = nn.Sequential(body, nn.ReLU(), head)
fit(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), 5)
body.requires_grad_(False)
fit(model, torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9), 5)
