import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(784, 400)
        self.fc_mu, self.fc_logvar = nn.Linear(400, 20), nn.Linear(400, 20)

    def forward(self, x):
        h = F.relu(self.fc(x))
        return self.fc_mu(h), self.fc_logvar(h)


def train(dataset):
    torch.manual_seed(0)
    loader = DataLoader(dataset, batch_size=128, shuffle=True)
    encoder, decoder = Encoder(), nn.Linear(20, 784)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for images, _ in loader:
        images = images.view(-1, 784)
        mu, logvar = encoder(images)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        loss = criterion(decoder(z), images)
        kld = torch.sum(mu.pow(2) + logvar.exp() - 1 - logvar).mul(0.5) * 1.0
        kl = 0.5 * (mu.pow(2) + logvar.exp() - 1 - logvar).sum()
        loss = loss + kl  # finding: reduction-mismatch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(kld.item())
