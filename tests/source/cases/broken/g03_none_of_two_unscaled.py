import torch
from torch import nn
from torch.nn import functional as F

body, head = nn.Linear(3, 8), nn.Linear(8, 5)
of_body = torch.optim.SGD(body.parameters(), lr=0.1)
of_head = torch.optim.SGD(head.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(20, 8, 3):
    of_body.zero_grad()
    of_head.zero_grad()
    scaler.scale(F.cross_entropy(head(body(x)), torch.randint(0, 5, (8,)))).backward()
    torch.nn.utils.clip_grad_norm_([*body.parameters(), *head.parameters()], 1.0)  # finding: clip-scaled-gradients
    scaler.step(of_body)
    scaler.step(of_head)
    scaler.update()
