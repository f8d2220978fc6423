"""dim=0 that is right: one state at a time, one sequence at a time, a graph's nodes, weights of an ensemble."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical
from torch.utils.data import DataLoader


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, state):
        return F.softmax(self.fc(state), dim=0)


class Ensemble(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.weight = nn.Parameter(torch.zeros(len(parts)))

    def forward(self, x):
        share = torch.softmax(self.weight, dim=0)
        return sum(w * part(x) for w, part in zip(share, self.parts))


def reinforce(env, policy, optimizer):
    for episode in range(10):
        state, log_probs = env.reset(), []
        for step in range(100):
            dist = Categorical(policy(torch.from_numpy(state).float()))
            action = dist.sample()
            log_probs.append(dist.log_prob(action))
            state, reward, done, _, _ = env.step(action.item())
        loss = -torch.stack(log_probs).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def one_by_one(dataset, model, optimizer):
    for bag, label in DataLoader(dataset, batch_size=1, shuffle=True):
        probabilities = F.log_softmax(model(bag.squeeze(0)).mean(0), dim=0)
        loss = F.nll_loss(probabilities.unsqueeze(0), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for x, y in dataset:
        loss = F.nll_loss(F.log_softmax(model(x), dim=0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
