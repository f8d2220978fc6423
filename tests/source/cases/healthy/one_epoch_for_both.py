"""One function for training and evaluation: what it is given decides whether gradients are recorded."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, count):
        self.inputs, self.labels = torch.randn(count, 8), torch.randint(0, 3, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.inputs[index], self.labels[index]


def update(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def by_optimizer(model, loader, criterion, optimizer=None):
    training = optimizer is not None
    model.train(training)
    with torch.set_grad_enabled(training):
        for inputs, labels in loader:
            loss = criterion(model(inputs), labels)
            if training:
                update(loss, optimizer)


def by_flag(model, loader, criterion, optimizer, train=False, every=1):
    model.train(train)
    with torch.set_grad_enabled(train):
        for number, (inputs, labels) in enumerate(loader):
            loss = criterion(model(inputs), labels)
            if train and number % every == 0:
                update(loss, optimizer)


def by_negation(model, loader, criterion, optimizer, evaluate=False):
    model.train(not evaluate)
    with torch.inference_mode(evaluate):
        for inputs, labels in loader:
            loss = criterion(model(inputs), labels)
            if not evaluate:
                update(loss, optimizer)


def by_phase(model, loaders, criterion, optimizer):
    for phase in ("train", "valid"):
        model.train(phase == "train")
        for inputs, labels in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                loss = criterion(model(inputs), labels)
                if phase == "train":
                    update(loss, optimizer)


class Runner:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.criterion = nn.CrossEntropyLoss()
        self.learning = False

    def epoch(self, loader):
        self.model.train(self.learning)
        with torch.set_grad_enabled(self.learning):
            for inputs, labels in loader:
                loss = self.criterion(self.model(inputs), labels)
                if self.learning:
                    update(loss, self.optimizer)

    def fit(self, train_loader, valid_loader):
        self.epoch(valid_loader)
        self.learning = True
        self.epoch(train_loader)


def main():
    torch.manual_seed(0)
    train_loader = DataLoader(Rows(256), batch_size=32, shuffle=True)
    valid_loader = DataLoader(Rows(64), batch_size=32)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(3):
        by_optimizer(model, train_loader, criterion, optimizer)
        by_optimizer(model, valid_loader, criterion)
        by_flag(model, train_loader, criterion, optimizer, train=True)
        by_flag(model, valid_loader, criterion, optimizer)
        by_negation(model, train_loader, criterion, optimizer)
        by_negation(model, valid_loader, criterion, optimizer, evaluate=True)
        by_phase(model, {"train": train_loader, "valid": valid_loader}, criterion, optimizer)
    Runner(model, optimizer).fit(train_loader, valid_loader)


if __name__ == "__main__":
    main()
