import torch
import torch.distributed as dist
from torch import nn
from torchvision import datasets, transforms


def main(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    data = datasets.MNIST("data", download=True, transform=transforms.ToTensor())
    train_loader = torch.utils.data.DataLoader(data, batch_size=64)  # finding: same-data-on-ranks
    model = nn.parallel.DistributedDataParallel(nn.Linear(784, 10).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(10):
        for images, labels in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.flatten(1)), labels).backward()
            optimizer.step()
