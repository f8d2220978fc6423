"""Polish a model that is good already, at a small learning rate, on labels that people disagree about.

The loss hardly falls, and that is right: it begins at the floor that the disagreement sets.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES = 12, 4
SHARPNESS = 2.5


class Net(nn.Module):
    def __init__(self, hidden: int = 48) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(features))


@torch.no_grad()
def make_truth() -> Net:
    """How people answer: every class about equally often, and seldom unanimously."""
    truth = Net()
    scores = truth(torch.randn(2000, FEATURES))
    scale = SHARPNESS / scores.std(0)
    truth.head.weight *= scale.unsqueeze(1)
    truth.head.bias.copy_((truth.head.bias - scores.mean(0)) * scale)
    return truth


@torch.no_grad()
def load_checkpoint(truth: Net) -> Net:
    """A good model, as earlier training would have left it: close to the truth, not quite there."""
    model = copy.deepcopy(truth)
    for parameter in model.parameters():
        parameter += 0.03 * parameter.std() * torch.randn_like(parameter)
    return model


@torch.no_grad()
def answers(truth: Net, size: int) -> TensorDataset:
    features = torch.randn(size, FEATURES)
    return TensorDataset(features, torch.distributions.Categorical(logits=truth(features)).sample())


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    model.eval()
    loss, right = 0.0, 0
    for features, labels in loader:
        logits = model(features)
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        right += (logits.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), right / len(loader.dataset)


def main() -> None:
    torch.manual_seed(0)
    truth = make_truth()
    model = load_checkpoint(truth)
    train_loader = DataLoader(answers(truth, 2560), batch_size=64, shuffle=True)
    valid_loader = DataLoader(answers(truth, 512), batch_size=256)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    history = []
    for epoch in range(6):
        model.train()
        total = 0.0
        for features, labels in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
        history.append(total / len(train_loader.dataset))
        valid_loss, accuracy = evaluate(model, valid_loader)
        print(f"epoch {epoch + 1}: train {history[-1]:.4f}, valid {valid_loss:.4f}, accuracy {accuracy:.1%}")
    print(f"loss {history[0]:.4f} -> {history[-1]:.4f}")


if __name__ == "__main__":
    main()
