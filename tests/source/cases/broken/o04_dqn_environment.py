import torch
from torch import nn

policy = nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
state = env.reset()
for step in range(1000):
    action = policy(state).argmax()
    state, reward, done, _ = env.step(action)
    states, actions, rewards, following = memory.sample(32)
    values = policy(states).gather(1, actions)
    loss = nn.functional.smooth_l1_loss(values, rewards)
    loss.backward()
    optimizer.step()  # finding: step-order
