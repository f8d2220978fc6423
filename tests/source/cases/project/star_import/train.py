from utils import *
from net import *

def train():
    model = net()
    enc_optim = torch.optim.Adam(model.enc.parameters())
    dec_optim = torch.optim.Adam(model.dec.parameters())
    for x, y in batch:
        loss = model(x, y)
        loss.backward()
        enc_optim.step()
        dec_optim.step()

train()
