import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR


def full_batch(model, x, y, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()


def per_epoch_at_the_last_batch(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if i == len(loader) - 1:
                scheduler.step()


def warmup_and_decay(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    warmup = LambdaLR(optimizer, lambda step: min(1.0, step / 500))
    decay = StepLR(optimizer, step_size=30)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if epoch == 0:
                warmup.step()
        decay.step()


def told_the_epoch(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, step_size=30)
    for epoch in range(epochs):
        scheduler.step(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def in_a_chain(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = LambdaLR(optimizer, lambda step: 0.1)
    second = OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(loader))
    scheduler = SequentialLR(optimizer, [first, second], milestones=[5])
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            scheduler.step()


def find_lr(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    scheduler = LambdaLR(optimizer, lambda step: 1.1**step)
    for x, y in loader:
        scheduler.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def handed_over(model, loader, epochs, callbacks):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, step_size=30)
    callbacks.append(lambda: scheduler.step())
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        for callback in callbacks:
            callback()


def either(model, loader, epochs, plateau):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer) if plateau else CosineAnnealingLR(optimizer, epochs)
    for epoch in range(epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        if plateau:
            scheduler.step(total)
        else:
            scheduler.step()


def denoise(noise_scheduler, unet, sample):
    for t in noise_scheduler.timesteps:
        sample = noise_scheduler.step(unet(sample, t), t, sample).prev_sample
    return sample
