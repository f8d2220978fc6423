import torch
from torch import nn


class ViT(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2), 2)
        self.mlp_head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, n))

    def forward(self, x):
        x = self.encoder(x)
        x = self.mlp_head(x[0])
        out = x.softmax(dim=1)  # finding: double-softmax
        return out.squeeze()


if __name__ == "__main__":
    vit = ViT(10)
    optim = torch.optim.AdamW(vit.parameters())
    ce_loss = nn.CrossEntropyLoss()
    for epoch in range(3):
        for _ in range(10):
            x, y = torch.randn(5, 4, 16), torch.randint(0, 10, (4,))
            optim.zero_grad()
            loss = ce_loss(vit(x), y)
            loss.backward()
            optim.step()
