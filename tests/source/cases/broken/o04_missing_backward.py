import torch
from torch import nn


def train(model, loader, optimizer, criterion, device):
    model.train()
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        optimizer.step()  # finding: step-order


model = nn.Linear(4, 2)
train(model, load(), torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), torch.device("cpu"))
