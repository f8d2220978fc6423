import torch
from torch import nn
from torch.autograd import Variable

m = nn.Linear(4, 3)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
crit = nn.CrossEntropyLoss()
for i in range(10):
    out = m(torch.randn(4, 4))
    loss = crit(out, torch.randint(0, 3, (4,)))
    loss = Variable(loss.data, requires_grad=True)  # finding: loss-detached
    opt.zero_grad()
    loss.backward()
    opt.step()
