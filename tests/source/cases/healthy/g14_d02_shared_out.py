import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("nccl")
x, y = torch.randn(1000, 8), torch.randint(0, 3, (1000,))
part = TensorDataset(x[rank::world_size], y[rank::world_size])
loader = DataLoader(part, batch_size=16, shuffle=True)
test_loader = DataLoader(TensorDataset(x, y), batch_size=64)
model = DistributedDataParallel(nn.Linear(8, 3).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
accum = 4
for epoch in range(3):
    for i, (inputs, labels) in enumerate(loader):
        is_last = (i + 1) % accum == 0 or i + 1 == len(loader)
        model.require_backward_grad_sync = is_last
        loss = nn.functional.cross_entropy(model(inputs), labels) / accum
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    total = torch.zeros(1)
    with torch.no_grad():
        for inputs, labels in test_loader:
            total += nn.functional.cross_entropy(model(inputs), labels)
    dist.all_reduce(total)
