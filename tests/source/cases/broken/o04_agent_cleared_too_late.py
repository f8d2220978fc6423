"""The loop is in another file: one call of the method says enough."""

import torch
import torch.nn.functional as F
from torch import nn


class Agent:
    def __init__(self, states, actions):
        self.critic = nn.Sequential(nn.Linear(states + actions, 64), nn.ReLU(), nn.Linear(64, 1))
        self.target = nn.Sequential(nn.Linear(states + actions, 64), nn.ReLU(), nn.Linear(64, 1))
        self.actor = nn.Sequential(nn.Linear(states, 64), nn.ReLU(), nn.Linear(64, actions), nn.Tanh())
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=3e-4)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=3e-4)

    def train(self, replay_buffer, batch_size=256):
        state, action, reward, next_state, not_done = replay_buffer.sample(batch_size)
        with torch.no_grad():
            target = reward + not_done * 0.99 * self.target(torch.cat([next_state, self.actor(next_state)], 1))
        critic_loss = F.mse_loss(self.critic(torch.cat([state, action], 1)), target)
        critic_loss.backward()
        self.critic_optimizer.zero_grad()  # finding: step-order
        self.critic_optimizer.step()

        actor_loss = -self.critic(torch.cat([state, self.actor(state)], 1)).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()

        for param, target_param in zip(self.critic.parameters(), self.target.parameters()):
            target_param.data.copy_(0.005 * param.data + 0.995 * target_param.data)
