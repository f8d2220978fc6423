import torch
from torch import nn
from config import args

model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
crit = nn.CrossEntropyLoss()
for i, (x, y) in enumerate(args.loader):
    if not args.no_zero:
        opt.zero_grad()
    loss = crit(model(x), y)
    if args.aux:
        loss = loss + crit(model(x + 1), y)
    if args.cutmix:
        loss = loss + crit(model(x + 2), y)
    if args.distill:
        loss = loss + crit(model(x + 3), y)
    if args.ema:
        model.eval()
    if args.focal:
        loss = loss + crit(model(x + 4), y)
    if args.jitter:
        loss = loss + crit(model(x + 5), y)
    if args.mixup:
        loss = loss + crit(model(x + 6), y)
    loss.backward()
    opt.step()
