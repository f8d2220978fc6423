import torch
from torch import nn
from torchvision import models


class Trainer:
    def __init__(self, model, train_loader, val_loader):
        self.model = model
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()

    def train_epoch(self):
        for images, labels in self.train_loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(images), labels)
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()  # finding: wrong-mode
        return sum((self.model(x).argmax(1) == y).sum().item() for x, y in self.val_loader)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch()
            print(epoch, self.validate())


def main(train_loader, val_loader):
    torch.manual_seed(0)
    trainer = Trainer(models.resnet18(num_classes=10), train_loader, val_loader)
    trainer.fit(10)


if __name__ == "__main__":
    main([], [])
