"""Segment blobs (cells) in noisy 24x24 images with a small encoder-decoder."""

import math
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

IMAGE_SIZE = 24
TRAIN_IMAGES = 768
VAL_IMAGES = 128
BATCH = 16
EPOCHS = 8
LEARNING_RATE = 0.1
PRIOR = 0.01
SEED = 2024
CHECKPOINTS = Path("./checkpoints")


def paint_cells(count):
    rows, cols = torch.meshgrid(torch.arange(IMAGE_SIZE), torch.arange(IMAGE_SIZE), indexing="ij")
    images, masks = [], []
    for _ in range(count):
        mask = torch.zeros(IMAGE_SIZE, IMAGE_SIZE, dtype=torch.bool)
        for _ in range(int(torch.randint(2, 6, ()))):
            centre = torch.randint(3, IMAGE_SIZE - 3, (2,))
            radius = 2.0 + 2.0 * torch.rand(())
            mask |= (rows - centre[0]) ** 2 + (cols - centre[1]) ** 2 < radius**2
        image = 1.2 * mask.float() + 0.6 * torch.randn(IMAGE_SIZE, IMAGE_SIZE)
        images.append(image)
        masks.append(mask.float())
    stacked = torch.stack(images).unsqueeze(1)
    return (stacked - stacked.mean()) / stacked.std(), torch.stack(masks).unsqueeze(1)


def conv(inputs, outputs, stride=1):
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1)


class CellNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.enter = conv(1, width)
        self.down = conv(width, 2 * width, stride=2)
        self.middle = conv(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, kernel_size=2, stride=2)
        self.merge = conv(2 * width, width)
        self.predict = nn.Conv2d(width, 1, kernel_size=1)
        self.init_weights()

    def init_weights(self):
        bias = -math.log((1 - PRIOR) / PRIOR)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.constant_(module.bias, bias)

    def forward(self, x):
        skip = F.relu(self.enter(x))
        deep = F.relu(self.down(skip))
        deep = F.relu(self.middle(deep))
        deep = F.relu(self.up(deep))
        merged = F.relu(self.merge(torch.cat([skip, deep], dim=1)))
        return self.predict(merged)


def dice(logits, masks):
    hard = (logits > 0).float()
    overlap = (hard * masks).sum((1, 2, 3))
    return ((2 * overlap + 1) / (hard.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)).mean().item()


def flip(images, masks):
    if torch.rand(()) < 0.5:
        images, masks = images.flip(-1), masks.flip(-1)
    if torch.rand(()) < 0.5:
        images, masks = images.flip(-2), masks.flip(-2)
    return images, masks


def train(model, images, masks, optimizer):
    model.train()
    losses = []
    for picked in torch.randperm(len(images)).split(BATCH):
        x, y = flip(images[picked], masks[picked])
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def validate(model, images, masks):
    model.eval()
    with torch.no_grad():
        logits = model(images)
    return F.binary_cross_entropy_with_logits(logits, masks).item(), dice(logits, masks)


def main():
    torch.manual_seed(SEED)
    images, masks = paint_cells(TRAIN_IMAGES)
    val_images, val_masks = paint_cells(VAL_IMAGES)
    model = CellNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[5, 7], gamma=0.2)
    CHECKPOINTS.mkdir(exist_ok=True)
    best = 0.0
    for epoch in range(EPOCHS):
        train_loss = train(model, images, masks, optimizer)
        val_loss, val_dice = validate(model, val_images, val_masks)
        scheduler.step()
        print(f"{epoch:02d} train {train_loss:.4f} val {val_loss:.4f} dice {val_dice:.3f}")
        if val_dice > best:
            best = val_dice
            torch.save(model.state_dict(), CHECKPOINTS / "cellnet.pt")


if __name__ == "__main__":
    main()
