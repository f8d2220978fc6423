"""One loop for both phases, and BatchNorm frozen on purpose by an eval() right before training."""

import torch
from torch import nn


def fit(model, loaders, criterion, optimizer, epochs):
    for epoch in range(epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            for inputs, labels in loaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = criterion(model(inputs), labels)
                    if phase != "val":
                        loss.backward()
                        optimizer.step()


def fine_tune(model, loader, criterion, optimizer):
    for inputs, labels in loader:
        model.eval()
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.randn(8, 4), torch.randint(0, 2, (8,)))]
fit(model, {"train": batches, "val": batches}, nn.CrossEntropyLoss(), optimizer, 3)
fine_tune(model, batches, nn.CrossEntropyLoss(), optimizer)
