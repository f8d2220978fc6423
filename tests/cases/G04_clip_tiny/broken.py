# Cell segmentation with a two-level U-Net on synthetic microscopy crops.
import argparse
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "data": {"n_train": 480, "n_val": 64, "side": 16, "max_cells": 3, "noise": 0.25},
    "model": {"base": 6},
    "optim": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-5, "grad_clip": 1e-3},
    "train": {"epochs": 12, "batch": 16, "seed": 99, "log_interval": 15},
}


def make_crops(n, side, max_cells, noise, rng):
    yy, xx = np.mgrid[0:side, 0:side]
    images = np.zeros((n, 1, side, side), dtype=np.float32)
    masks = np.zeros_like(images)
    for i in range(n):
        for _ in range(rng.integers(1, max_cells + 1)):
            cy, cx = rng.uniform(3, side - 3, 2)
            ry, rx = rng.uniform(2.0, 4.5, 2)
            inside = ((yy - cy) / ry) ** 2 + ((xx - cx) / rx) ** 2 < 1
            masks[i, 0][inside] = 1
            images[i, 0][inside] = rng.uniform(0.6, 1.0)
    images += noise * rng.standard_normal(images.shape).astype(np.float32)
    images = (images - images.mean()) / images.std()
    return torch.from_numpy(images), torch.from_numpy(masks)


def double_conv(c_in, c_out):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(c_out),
        nn.ReLU(inplace=True),
        nn.Conv2d(c_out, c_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(c_out),
        nn.ReLU(inplace=True),
    )


class MiniUNet(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.down1 = double_conv(1, base)
        self.down2 = double_conv(base, 2 * base)
        self.up = nn.ConvTranspose2d(2 * base, base, 2, stride=2)
        self.merge = double_conv(2 * base, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        skip = self.down1(x)
        deep = self.down2(F.max_pool2d(skip, 2))
        x = torch.cat([skip, self.up(deep)], dim=1)
        return self.out(self.merge(x))


def dice_score(logits, masks):
    predicted = (logits > 0).float()
    overlap = (predicted * masks).sum(dim=(1, 2, 3))
    return (2 * overlap / (predicted.sum(dim=(1, 2, 3)) + masks.sum(dim=(1, 2, 3)) + 1e-6)).mean().item()


def validate(model, images, masks):
    model.eval()
    with torch.no_grad():
        logits = model(images)
        loss = F.binary_cross_entropy_with_logits(logits, masks).item()
    return loss, dice_score(logits, masks)


def fit(model, train, val, cfg):
    optim_cfg, train_cfg = cfg["optim"], cfg["train"]
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=optim_cfg["lr"],
        momentum=optim_cfg["momentum"],
        nesterov=optim_cfg["nesterov"],
        weight_decay=optim_cfg["weight_decay"],
    )
    images, masks = train
    best, iteration = 0.0, 0
    for epoch in range(1, train_cfg["epochs"] + 1):
        model.train()
        for rows in torch.randperm(len(images)).split(train_cfg["batch"]):
            logits = model(images[rows])
            loss = F.binary_cross_entropy_with_logits(logits, masks[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=optim_cfg["grad_clip"])
            optimizer.step()
            iteration += 1
            if iteration % train_cfg["log_interval"] == 0:
                print(f"iter {iteration:4d}  train loss {loss.item():.4f}")
        val_loss, dice = validate(model, *val)
        print(f"epoch {epoch:2d}  val loss {val_loss:.4f}  dice {dice:.3f}")
        if dice > best:
            best = dice
            os.makedirs("checkpoints", exist_ok=True)
            torch.save(model.state_dict(), os.path.join("checkpoints", "unet_best.pt"))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    for key in ("epochs", "seed"):
        if getattr(args, key) is not None:
            CONFIG["train"][key] = getattr(args, key)

    torch.manual_seed(CONFIG["train"]["seed"])
    rng = np.random.default_rng(CONFIG["train"]["seed"])
    data = CONFIG["data"]
    shape = (data["side"], data["max_cells"], data["noise"], rng)
    train, val = make_crops(data["n_train"], *shape), make_crops(data["n_val"], *shape)
    best = fit(MiniUNet(**CONFIG["model"]), train, val, CONFIG)
    print(f"best dice {best:.3f}")


if __name__ == "__main__":
    main()
