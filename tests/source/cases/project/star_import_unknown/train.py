import torch
from net import *


def train(batches):
    model = Pointer()
    encoder = torch.optim.Adam(model.enc.parameters(), lr=1e-3)
    decoder = torch.optim.Adam(model.dec.parameters(), lr=1e-3)
    for x, y in batches:
        loss = model(x, y)
        loss.backward()
        encoder.step()
        decoder.step()


train([])
