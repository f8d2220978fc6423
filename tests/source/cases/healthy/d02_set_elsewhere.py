import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def build(dataset, validation, batch_size):
    train_sampler = DistributedSampler(dataset)
    val_sampler = DistributedSampler(validation, shuffle=False)
    return (
        DataLoader(dataset, batch_size, sampler=train_sampler),
        DataLoader(validation, batch_size, sampler=val_sampler),
    )


def step(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
    return torch.cuda.max_memory_allocated()
