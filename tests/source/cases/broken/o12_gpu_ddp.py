import torch
from torch import nn
from torch.nn import DataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        logits = self.fc(x)
        probs = nn.Softmax(dim=-1)(logits)  # finding: double-softmax
        return probs


net = DataParallel(Net()).cuda()
crit = nn.CrossEntropyLoss().cuda()
opt = torch.optim.Adam(net.parameters())
for i in range(10):
    pred = net(torch.randn(2, 4).cuda())
    loss = crit(pred, torch.randint(0, 3, (2,)).cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
