import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)
        self.loss_fn = nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        logits = self.head(x)
        preds = torch.argmax(logits, -1)
        if labels is not None:
            return self.loss_fn(logits, labels), preds
        return preds


torch.manual_seed(0)
model = Net()
opt = torch.optim.Adam(model.parameters())
for batch in loader:
    x, labels = batch
    opt.zero_grad()
    loss, _ = model(x, labels)
    loss.backward()
    opt.step()
