import torch
from torch import nn, optim
from torch.optim import lr_scheduler


def train(model, loader, epochs):
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.MultiStepLR(optimizer, milestones=[30, 60], gamma=0.1)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        scheduler.step()  # finding: scheduler-misuse
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
