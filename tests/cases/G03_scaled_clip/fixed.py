"""Estimate the pose (angle, shift) of a bar from a tiny image. Mixed precision training."""

from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

config = {
    "data": {"train": 1536, "val": 256, "size": 16, "noise": 0.15},
    "model": {"channels": 16, "hidden": 64},
    "optim": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-5, "grad_clip": 5.0},
    "train": {"epochs": 10, "batch_size": 32, "amp": True, "seed": 99, "save_to": "runs/pose"},
}


class Bars(Dataset):
    def __init__(self, count, size, noise, seed):
        generator = torch.Generator().manual_seed(seed)
        self.angle = torch.pi * torch.rand(count, generator=generator)
        self.shift = 0.6 * torch.rand(count, generator=generator) - 0.3
        axis = torch.linspace(-1, 1, size)
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        normal = torch.stack([torch.cos(self.angle), torch.sin(self.angle)], 1)
        distance = normal[:, 0, None, None] * x + normal[:, 1, None, None] * y - self.shift[:, None, None]
        clean = torch.exp(-((distance / 0.2) ** 2))
        images = clean + noise * torch.randn(clean.shape, generator=generator)
        self.images = ((images - images.mean()) / images.std()).unsqueeze(1)
        # the bar looks the same after half a turn, so the doubled angle is what can be learnt
        self.poses = torch.stack([torch.cos(2 * self.angle), torch.sin(2 * self.angle)], 1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index], "pose": self.poses[index]}


class PoseNet(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2, padding=1),
            nn.GroupNorm(4, channels),
            nn.SiLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.GroupNorm(4, 2 * channels),
            nn.SiLU(),
            nn.Flatten(),
        )
        self.regressor = nn.Sequential(nn.LazyLinear(hidden), nn.SiLU(), nn.Linear(hidden, 2))

    def forward(self, image):
        return self.regressor(self.features(image))


class AmpTrainer:
    def __init__(self, model, settings):
        self.model = model
        self.amp = settings["train"]["amp"]
        self.clip = settings["optim"]["grad_clip"]
        self.optimizer = torch.optim.SGD(
            model.parameters(),
            lr=settings["optim"]["lr"],
            momentum=settings["optim"]["momentum"],
            weight_decay=settings["optim"]["weight_decay"],
            nesterov=True,
        )
        self.scaler = torch.amp.GradScaler("cpu", enabled=self.amp)
        self.criterion = nn.MSELoss()

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.bfloat16) if self.amp else nullcontext()

    def step(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            predicted = self.model(batch["image"])
        loss = self.criterion(predicted.float(), batch["pose"])
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def train_epoch(self, loader):
        self.model.train()
        return torch.stack([self.step(batch) for batch in loader]).mean().item()

    @torch.no_grad()
    def angle_error(self, loader):
        self.model.eval()
        errors = []
        for batch in loader:
            predicted = self.model(batch["image"])
            turn = torch.atan2(predicted[:, 1], predicted[:, 0]) - torch.atan2(batch["pose"][:, 1], batch["pose"][:, 0])
            errors.append(torch.atan2(turn.sin(), turn.cos()).abs() / 2)
        return torch.rad2deg(torch.cat(errors).mean()).item()


def main():
    data, training = config["data"], config["train"]
    torch.manual_seed(training["seed"])
    train_set = Bars(data["train"], data["size"], data["noise"], seed=1)
    val_set = Bars(data["val"], data["size"], data["noise"], seed=2)
    train_loader = DataLoader(train_set, batch_size=training["batch_size"], shuffle=True)
    val_loader = DataLoader(val_set, batch_size=128)

    model = PoseNet(**config["model"])
    model(train_set.images[:1])
    trainer = AmpTrainer(model, config)
    folder = Path(training["save_to"])
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in range(1, training["epochs"] + 1):
        loss = trainer.train_epoch(train_loader)
        error = trainer.angle_error(val_loader)
        print(f"epoch {epoch:2d}: loss {loss:.4f}, angle off by {error:.1f} degrees")
        torch.save({"model": model.state_dict(), "scaler": trainer.scaler.state_dict()}, folder / "last.pt")


if __name__ == "__main__":
    main()
