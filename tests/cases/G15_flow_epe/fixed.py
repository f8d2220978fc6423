"""Optical flow on rendered pairs of textures; frames may have rows that the sensor dropped."""

import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset

SIDE = 20
MAX_FLOW = 2.0
DROP_RATE = 0.004
ITERATIONS = 400
BATCH = 8
LR = 2e-3


class FlowPairs(IterableDataset):
    """Endless (first frame, second frame, flow, valid) tuples, the motion being a shift and a zoom."""

    def __init__(self, seed):
        self.seed = seed
        axis = torch.linspace(-1, 1, SIDE)
        self.grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij")[::-1], dim=-1)

    def texture(self, gen):
        coarse = torch.rand(1, 1, 7, 7, generator=gen)
        return F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=True)

    def sample(self, gen):
        shift = (torch.rand(2, generator=gen) * 2 - 1) * MAX_FLOW
        zoom = 0.05 * torch.randn(1, generator=gen)
        flow = shift + zoom * self.grid * SIDE / 2
        first = self.texture(gen)
        second = F.grid_sample(
            first, (self.grid - flow * 2 / SIDE)[None], padding_mode="reflection", align_corners=True
        )
        valid = torch.ones(1, SIDE, SIDE)
        if torch.rand(1, generator=gen) < DROP_RATE:
            row = torch.randint(0, SIDE, (1,), generator=gen).item()
            valid[:, row] = 0
        frames = torch.cat([first[0], second[0]]) * 2 - 1
        return frames, flow.permute(2, 0, 1), valid

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed)
        while True:
            yield self.sample(gen)


class TinyFlowNet(nn.Module):
    def __init__(self, ch=24):
        super().__init__()
        self.enc1 = nn.Conv2d(2, ch, 5, stride=2, padding=2)
        self.enc2 = nn.Conv2d(ch, 2 * ch, 3, stride=2, padding=1)
        self.mid = nn.Sequential(nn.Flatten(), nn.Linear(2 * ch * 25, 128), nn.LeakyReLU(0.1), nn.Linear(128, 6))
        axis = torch.linspace(-1, 1, SIDE)
        yy, xx = torch.meshgrid(axis, axis, indexing="ij")
        self.register_buffer("basis", torch.stack([torch.ones_like(xx), xx, yy]))

    def forward(self, frames):
        x = F.leaky_relu(self.enc1(frames), 0.1)
        x = F.leaky_relu(self.enc2(x), 0.1)
        affine = self.mid(x).view(-1, 2, 3)
        return torch.einsum("nck,khw->nchw", affine, self.basis)


def endpoint_error(flow_pred, flow_gt, valid):
    """Mean Euclidean distance between predicted and true flow vectors over the valid pixels."""
    diff = (flow_pred - flow_gt) * valid
    epe = torch.sqrt((diff**2).sum(dim=1) + 1e-8)
    return epe.sum() / valid.sum()


def evaluate(model, batches):
    model.eval()
    errors = []
    with torch.no_grad():
        for frames, flow, valid in batches:
            errors.append(endpoint_error(model(frames), flow, valid).item())
    model.train()
    return sum(errors) / len(errors)


def main(out_dir="runs/flow"):
    torch.manual_seed(5)
    loader = iter(DataLoader(FlowPairs(seed=17), batch_size=BATCH))
    held_out = iter(DataLoader(FlowPairs(seed=18), batch_size=BATCH))
    val_batches = [next(held_out) for _ in range(8)]

    model = TinyFlowNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=200, gamma=0.5)

    average = None
    for it in range(1, ITERATIONS + 1):
        frames, flow, valid = next(loader)
        loss = endpoint_error(model(frames), flow, valid)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        scheduler.step()
        average = loss.item() if average is None else 0.9 * average + 0.1 * loss.item()
        if it % 20 == 0:
            print(f"it {it:4d} | epe {average:.3f}")
        if it % 100 == 0:
            print(f"it {it:4d} | val epe {evaluate(model, val_batches):.3f}")

    os.makedirs(out_dir, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(out_dir, "flow.pth"))


if __name__ == "__main__":
    main(*sys.argv[1:2])
