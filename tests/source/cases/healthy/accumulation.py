import argparse

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--accum", type=int, default=4)
parser.add_argument("--amp", action="store_true")
parser.add_argument("--clip", type=float, default=1.0)
args = parser.parse_args()


def main():
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = GradScaler() if args.amp else None
    loader = [(torch.randn(4, 8), torch.randint(0, 2, (4,)))] * 10
    for step, (x, y) in enumerate(tqdm(loader)):
        if x.numel() == 0:
            continue
        with autocast(enabled=args.amp):
            loss = nn.functional.cross_entropy(model(x), y) / args.accum
        if scaler is not None:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if (step + 1) % args.accum != 0:
            continue
        if args.clip:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
