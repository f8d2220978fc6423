"""Count the blobs in a small microscope image (0 to 4) with a plain convolutional network."""

import argparse
import pathlib

import torch
import torch.nn as nn


class ImageBank:
    def __init__(self, count, size, seed):
        gen = torch.Generator().manual_seed(seed)
        self.counts = torch.randint(0, 5, (count,), generator=gen)
        axis = torch.arange(size).float()
        images = 0.05 * torch.randn(count, size, size, generator=gen)
        for blob in range(4):
            cy, cx = torch.rand(2, count, 1, generator=gen) * (size - 4) + 2
            row = torch.exp(-((axis - cy) ** 2) / 1.5)
            col = torch.exp(-((axis - cx) ** 2) / 1.5)
            present = (self.counts > blob).float().view(-1, 1, 1)
            images += present * row.unsqueeze(2) * col.unsqueeze(1)
        self.images = ((images - images.mean()) / images.std()).unsqueeze(1)

    def split(self, holdout):
        train = self.images[holdout:], self.counts[holdout:]
        test = self.images[:holdout], self.counts[:holdout]
        return train, test


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride=stride, padding=1), nn.ReLU())


class PlainCounter(nn.Module):
    def __init__(self, width=12, classes=5):
        super().__init__()
        self.trunk = nn.Sequential(
            conv(1, width),
            conv(width, width),
            conv(width, width, stride=2),
            conv(width, 2 * width),
            conv(2 * width, 2 * width),
            conv(2 * width, 2 * width, stride=2),
        )
        self.top = nn.Sequential(nn.Flatten(), nn.Linear(2 * width * 9, 64), nn.ReLU(), nn.Linear(64, classes))
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module):
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)

    def forward(self, image):
        return self.top(self.trunk(image))


class Training:
    def __init__(self, model, options):
        self.model = model
        self.options = options
        self.objective = nn.CrossEntropyLoss()
        weights = [p for p in model.parameters() if p.ndim > 1]
        biases = [p for p in model.parameters() if p.ndim == 1]
        self.opt = torch.optim.SGD(
            [{"params": weights, "weight_decay": 1e-4}, {"params": biases}], lr=options.lr, momentum=0.9
        )
        self.iteration = 0

    def update(self, images, counts):
        """One optimizer step over several micro-batches."""
        self.opt.zero_grad()
        pieces = self.options.micro
        total = 0.0
        for part, wanted in zip(images.chunk(pieces), counts.chunk(pieces), strict=True):
            loss = self.objective(self.model(part), wanted) / pieces
            loss.backward()
            total += loss.item()
        self.opt.step()
        self.iteration += 1
        return total

    def test(self, images, counts):
        self.model.eval()
        with torch.no_grad():
            guess = self.model(images).argmax(dim=1)
        self.model.train()
        return (guess == counts).float().mean().item()

    def loop(self, train, test):
        images, counts = train
        gen = torch.Generator().manual_seed(self.options.seed)
        recent = []
        while self.iteration < self.options.iterations:
            rows = torch.randint(0, len(images), (self.options.batch,), generator=gen)
            recent.append(self.update(images[rows], counts[rows]))
            if self.iteration % 40 == 0:
                print(f"iteration {self.iteration}: loss {sum(recent) / len(recent):.4f}")
                recent = []
            if self.iteration % 200 == 0:
                print(f"iteration {self.iteration}: exact counts {self.test(*test):.1%}")


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--micro", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/counter"))
    options = parser.parse_args(argv)

    torch.manual_seed(options.seed)
    train, test = ImageBank(4000, 12, options.seed).split(400)
    training = Training(PlainCounter(), options)
    training.loop(train, test)
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.save(training.model.state_dict(), options.folder / "counter.pt")


if __name__ == "__main__":
    main()
