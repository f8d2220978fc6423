import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("nccl")
place = dist.get_rank()
torch.manual_seed(place)
rows = torch.randn(100, 3)
classes = torch.randint(0, 2, (100,))
loader = DataLoader(TensorDataset(rows, classes), batch_size=4, shuffle=True)
model = DDP(nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
