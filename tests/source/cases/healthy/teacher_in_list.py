import torch
from torch import nn
import torch.nn.functional as F


class Distiller(nn.Module):
    """teacher in a list so that it is not registered / not saved in the state dict"""

    def __init__(self, teacher_width, student_width):
        super().__init__()
        self.student = nn.Linear(student_width, 10)
        teacher = nn.Linear(teacher_width, 10)
        for p in teacher.parameters():
            p.requires_grad = False
        self._teacher = [teacher]

    def forward(self, x, y):
        s = self.student(x)
        with torch.no_grad():
            t = self._teacher[0](x)
        return F.cross_entropy(s, y) + F.kl_div(F.log_softmax(s, 1), F.softmax(t, 1), reduction="batchmean")


model = Distiller(8, 8)
opt = torch.optim.Adam(model.parameters())
for i in range(10):
    loss = model(torch.randn(4, 8), torch.randint(0, 10, (4,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
