import random
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn, optim


class QNet(nn.Module):
    def __init__(self, states, actions):
        super().__init__()
        self.fc1 = nn.Linear(states, 64)
        self.fc2 = nn.Linear(64, actions)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return F.softmax(self.fc2(x), dim=1)  # finding: activation-on-logits


q, target_q = QNet(4, 2), QNet(4, 2)
target_q.load_state_dict(q.state_dict())
optimizer = optim.Adam(q.parameters(), lr=1e-3)
memory = deque(maxlen=10000)


def optimize(gamma=0.99):
    state, action, reward, following, done = map(torch.stack, zip(*random.sample(memory, 32)))
    value = q(state).gather(1, action)
    with torch.no_grad():
        best = target_q(following).max(1)[0].unsqueeze(1)
    loss = F.smooth_l1_loss(value, reward + gamma * best * (1 - done))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for step in range(1000):
    optimize()
