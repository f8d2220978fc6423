"""NumPy's global generator is seeded per worker; generators made anew, one process, and evaluation on purpose."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Plain(Dataset):
    def __init__(self):
        self.split = np.random.RandomState(0).permutation(32)

    def __len__(self):
        return 32

    def __getitem__(self, index):
        noise = np.random.rand(4).astype(np.float32) * random.random()
        return torch.from_numpy(noise) + self.split[index] / 32, index % 2


class OwnPerWorker(Plain):
    def __init__(self):
        super().__init__()
        self.rng = random.Random(0)

    def __getitem__(self, index):
        info = get_worker_info()
        if info is not None:
            self.rng = random.Random(info.seed + index)
        return torch.full((4,), self.rng.random()), index % 2


class OneProcess(Plain):
    def __init__(self):
        super().__init__()
        self.rng = np.random.RandomState(0)

    def __getitem__(self, index):
        return torch.full((4,), self.rng.rand()), index % 2


class ValDataset(Plain):
    def __getitem__(self, index):
        np.random.seed(0)
        return super().__getitem__(index)


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for dataset, workers in ((Plain(), 2), (OwnPerWorker(), 2), (ValDataset(), 2)):
    for x, y in DataLoader(dataset, 8, shuffle=True, num_workers=workers, worker_init_fn=seed_worker):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.float()), y).backward()
        optimizer.step()
for x, y in DataLoader(OwnPerWorker(), 8, shuffle=True, num_workers=2):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.float()), y).backward()
    optimizer.step()
for x, y in DataLoader(OneProcess(), 8, shuffle=True, num_workers=0):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x.float()), y).backward()
    optimizer.step()
