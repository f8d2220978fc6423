import torch

torch.manual_seed(0)
point = torch.rand(8, 3, requires_grad=True)
centre = torch.rand(3)
optimizer = torch.optim.SGD([point], lr=0.1)
for step in range(10):
    distance = torch.sqrt(((point - centre) ** 2).sum(1))  # finding: unsafe-numerics
    loss = distance.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
