import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import OrderedDict

def main():
    net = nn.Linear(3, 4)
    soft = nn.Softmax(dim=1)
    crit = nn.CrossEntropyLoss()
    def step(batch):
        x, y = batch
        return crit(soft(net(x)), y)  # finding: double-softmax
    for b in loader:
        l = step(b); l.backward()
main()
