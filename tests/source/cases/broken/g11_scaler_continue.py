import torch
from torch import nn

model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
accumulate = 4
for step in range(1000):
    with torch.autocast("cuda"):
        loss = nn.functional.cross_entropy(model(torch.randn(4, 8).cuda()), torch.zeros(4).long().cuda()) / accumulate
    model.zero_grad(set_to_none=True)  # finding: zero-inside-window
    scaler.scale(loss).backward()
    if (step + 1) % accumulate:
        continue
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
