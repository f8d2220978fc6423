import torch
from torch import nn


def train(model, loader, criterion, optimizer, epoch, device):
    model.train()
    total = 0.0
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()  # finding: step-order
        total += loss.item()
    return total


def warm_up(model, loader, criterion, optimizer, scheduler):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()  # finding: step-order
        scheduler.step()


def fine_tune(net, loader, criterion, opt):
    for x, y in loader:
        opt.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        opt.step()
