import random

import torch
import torch.nn.functional as F
from torch import nn, optim


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, x):
        return self.layers(x)


class Agent:
    def __init__(self, env):
        self.env = env
        self.policy = QNet()
        self.target = QNet()
        self.target.load_state_dict(self.policy.state_dict())
        self.target.eval()
        self.optimizer = optim.RMSprop(self.policy.parameters())
        self.memory = []

    def act(self, state):
        with torch.no_grad():
            return self.policy(state).argmax().item()

    def learn(self):
        if len(self.memory) < 8:
            return
        states, actions, rewards, following = zip(*random.sample(self.memory, 8))
        states = torch.stack(states)
        q = self.policy(states).gather(1, torch.tensor(actions).unsqueeze(1)).squeeze(1)
        best = self.target(torch.stack(following)).max(1)[0].detach()
        loss = F.smooth_l1_loss(q, torch.tensor(rewards) + 0.99 * best)
        self.optimizer.zero_grad()
        loss.backward()
        for param in self.policy.parameters():
            param.grad.data.clamp_(-1, 1)
        self.optimizer.step()

    def run(self, episodes):
        for episode in range(episodes):
            state = self.env.reset()
            done = False
            while not done:
                action = self.act(state)
                following, reward, done, _ = self.env.step(action)
                self.memory.append((state, action, reward, following))
                state = following
                self.learn()
