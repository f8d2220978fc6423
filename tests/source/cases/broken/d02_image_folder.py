import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

dist.init_process_group("nccl")
place = torch.accelerator.current_accelerator()
local_rank = dist.get_rank() % 8
device = torch.device("cuda", local_rank)
images = ImageFolder("train")
loader = DataLoader(images, batch_size=4, shuffle=True)  # finding: same-data-on-ranks
model = DDP(nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
