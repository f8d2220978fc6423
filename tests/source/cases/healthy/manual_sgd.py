import torch

w = torch.randn(3, 1, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
for i in range(100):
    x = torch.randn(16, 3)
    loss = ((x @ w + b - x.sum(1, keepdim=True)) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        b -= 0.1 * b.grad
        w.grad.zero_()
        b.grad.zero_()
