import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
parser.add_argument("--clip", type=float, default=0.0)
args = parser.parse_args()

model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda") if args.amp else None
for step in range(100):
    loss = nn.functional.mse_loss(model(torch.randn(4, 8).cuda()), torch.zeros(4, 2).cuda())
    optimizer.zero_grad()
    if args.amp:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    if args.clip > 0:
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # finding: clip-scaled-gradients
    if args.amp:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
