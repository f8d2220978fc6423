import torch
from torch import nn
def f14(opt):
    opt.zero_grad()
def f13(opt):
    f14(opt)
def f12(opt):
    f13(opt)
def f11(opt):
    f12(opt)
def f10(opt):
    f11(opt)
def f9(opt):
    f10(opt)
def f8(opt):
    f9(opt)
def f7(opt):
    f8(opt)
def f6(opt):
    f7(opt)
def f5(opt):
    f6(opt)
def f4(opt):
    f5(opt)
def f3(opt):
    f4(opt)
def f2(opt):
    f3(opt)
def f1(opt):
    f2(opt)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10):
    f1(opt)
    loss = model(torch.randn(2, 4)).pow(2).mean()
    loss.backward()
    opt.step()
