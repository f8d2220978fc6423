from somewhere_else import *


class Pointer(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x, y):
        self.zero_grad()
        return F.cross_entropy(self.dec(self.enc(x)), y)
