"""Sums and lists that are back-propagated, cut, or let go within a few turns."""

import torch
import torch.nn.functional as F
from torch import nn


def multi_scale(outputs, target):
    loss = 0
    for output in outputs:
        loss += F.mse_loss(output, target)
    return loss


def reinforce(policy, optimizer, episodes):
    for _ in range(episodes):
        log_probs, rewards = [], []
        state = torch.randn(1, 4)
        for _ in range(10):
            distribution = torch.distributions.Categorical(logits=policy(state))
            action = distribution.sample()
            log_probs.append(distribution.log_prob(action))
            rewards.append(1.0)
            state = torch.randn(1, 4)
        loss = -(torch.cat(log_probs) * torch.tensor(rewards)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
running, history, total = 0.0, [], torch.zeros(())
for step in range(30):
    x = torch.randn(8, 4)
    loss = multi_scale([model(x), model(x * 2)], x[:, :2])
    aux = F.l1_loss(model(x), x[:, :2])
    loss = loss + 0.1 * aux
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.detach()
    history.append(float(loss))
    running += loss
    if step % 10 == 9:
        print(running / 10)
        running = 0.0
reinforce(model, optimizer, 3)
