import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class Actor(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(obs, 64), nn.ReLU(), nn.Linear(64, act))

    def forward(self, s):
        probs = F.softmax(self.fc(s), dim=-1)
        return probs, torch.log(probs + 1e-8)


class Critic(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.q = nn.Linear(obs, act)

    def forward(self, s):
        return self.q(s)


class SACAgent:
    def __init__(self, obs=4, act=2, lr=3e-4):
        self.actor = Actor(obs, act)
        self.q1 = Critic(obs, act)
        self.q1_target = copy.deepcopy(self.q1)
        for p in self.q1_target.parameters():
            p.requires_grad = False
        self.target_entropy = -0.98
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.alpha_opt = torch.optim.Adam([self.log_alpha], lr=lr)
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.critic_opt = torch.optim.Adam(self.q1.parameters(), lr=lr)
        self.gamma, self.tau = 0.99, 0.005

    def learn(self, s, a, r, s2, d):
        with torch.no_grad():
            probs, logp = self.actor(s2)
            v = (probs * (self.q1_target(s2) - self.log_alpha.exp() * logp)).sum(1)
            target = r + self.gamma * (1 - d) * v
        q = self.q1(s).gather(1, a)
        critic_loss = F.mse_loss(q, target.unsqueeze(1))
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()

        probs, logp = self.actor(s)
        actor_loss = (probs * (self.log_alpha.exp().detach() * logp - self.q1(s).detach())).sum(1).mean()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()

        alpha_loss = -(self.log_alpha * (logp + self.target_entropy).detach()).mean()
        self.alpha_opt.zero_grad()
        alpha_loss.backward()
        self.alpha_opt.step()

        for p, tp in zip(self.q1.parameters(), self.q1_target.parameters()):
            tp.data.copy_(self.tau * p.data + (1 - self.tau) * tp.data)


if __name__ == "__main__":
    agent = SACAgent()
    for i in range(100):
        agent.learn(torch.randn(8, 4), torch.randint(0, 2, (8, 1)), torch.randn(8), torch.randn(8, 4), torch.zeros(8))
