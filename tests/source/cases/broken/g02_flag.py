import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--max-norm", type=float)
parser.add_argument("--accum", type=int, default=8)
args = parser.parse_args()
model = nn.LSTM(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(100):
    loss = nn.functional.mse_loss(model(torch.randn(4, 8))[0], torch.zeros(4, 2)) / args.accum
    loss.backward()
    if args.max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)  # finding: clip-partial-gradients
    if (i + 1) % args.accum == 0 or i == 99:
        optimizer.step()
        optimizer.zero_grad()
