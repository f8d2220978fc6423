import torch
from torch import nn
from elsewhere import apply_update


def gradients_per_batch(model, loader, criterion, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        yield model


def saliency(model, loader, criterion, optimizer):
    found = []
    for x, y in loader:
        x.requires_grad_()
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        found.append(x.grad.abs())
    return found


def train(model, loader, criterion, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        apply_update(optimizer)


def through_another_name(model, loader, criterion, optimizer):
    update = optimizer.step
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        update()


def cleared_by_model(model, loader, criterion, optimizer):
    for x, y in loader:
        model.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
