import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
big = DDP(nn.Linear(3, 2))
small = nn.Linear(3, 2)
optimizer = torch.optim.SGD([*big.parameters(), *small.parameters()], lr=0.1)
for x in torch.randn(20, 8, 3) + dist.get_rank():
    optimizer.zero_grad()
    F.cross_entropy(big(x) + small(x), torch.randint(0, 2, (8,))).backward()
    for p in small.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    optimizer.step()
