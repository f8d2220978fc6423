import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(784, 32)
        self.decode = nn.Linear(32, 784)

    def forward(self, x):
        return self.decode(torch.relu(self.encode(x)))


class Trainer:
    def __init__(self, dataset, classes):
        self.loader = DataLoader(dataset, batch_size=32, shuffle=True)
        self.autoencoder, self.classifier = Autoencoder(), nn.Linear(784, classes)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        params = list(self.autoencoder.parameters()) + list(self.classifier.parameters())
        self.optimizer = optim.AdamW(params)

    def epoch(self):
        for images, labels in self.loader:
            images = images.view(images.size(0), -1)
            self.optimizer.zero_grad()
            loss = self.criterion(labels, self.classifier(images))  # finding: loss-arguments-swapped
            again = F.binary_cross_entropy_with_logits(images, self.autoencoder(images))  # finding: loss-arguments-swapped
            (loss + again).backward()
            self.optimizer.step()
