import torch
from torch import nn
from torch.nn import functional as F

teacher, student = nn.Linear(3, 5), nn.Linear(3, 5)
of_teacher = torch.optim.SGD(teacher.parameters(), lr=0.1)
of_student = torch.optim.SGD(student.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(20, 8, 3):
    y = torch.randint(0, 5, (8,))
    of_teacher.zero_grad()
    of_student.zero_grad()
    in_half = F.cross_entropy(teacher(x), y)
    F.cross_entropy(student(x), y).backward()
    scaler.scale(in_half).backward()
    of_student.step()
    scaler.step(of_teacher)
    scaler.update()
