import torch
import torch.nn.functional as F
from torch import nn


class TwoHeads(nn.Module):
    """One head returns probabilities for its own loss, the other returns logits."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.policy = nn.Linear(16, 4)
        self.classes = nn.Linear(16, 3)

    def forward(self, x):
        hidden = F.relu(self.body(x))
        return F.softmax(self.policy(hidden), dim=-1), self.classes(hidden)


model = TwoHeads()
optimizer = torch.optim.Adam(model.parameters())
for step in range(10):
    policy, scores = model(torch.randn(4, 8))
    entropy = -(policy * (policy + 1e-8).log()).sum(1).mean()
    loss = F.cross_entropy(scores, torch.randint(0, 3, (4,))) - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
