import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


class Trainer:
    def __init__(self, config):
        self.model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config["lr"])
        self.criterion = nn.CrossEntropyLoss()

    def fit(self, train_loader, valid_loader):
        for epoch in range(3):
            self.model.train()
            for x, y in tqdm(train_loader):
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(x), y)
                loss.backward()
                self.optimizer.step()
            print(self.validate(valid_loader))

    def validate(self, loader):
        self.model.eval()
        losses = []
        for index, (x, y) in enumerate(tqdm(loader)):
            output = self.model(x)  # finding: eval-keeps-graph
            losses.append(self.criterion(output, y).item())
        return sum(losses) / len(losses)


if __name__ == "__main__":
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    Trainer({"lr": 1e-3}).fit(DataLoader(data, 16, shuffle=True), DataLoader(data, 16))
