import torch
from torch import nn


def train(model, loader, optimizer, device):
    criterion = nn.CrossEntropyLoss()
    for images, labels in loader:
        images = images.to(device)
        labels = labels.to(device)
        optimizer.zero_grad()
        loss = criterion(labels, model(images))  # finding: loss-arguments-swapped
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(device)
train(model, make_loader(), torch.optim.SGD(model.parameters(), lr=0.1), device)
