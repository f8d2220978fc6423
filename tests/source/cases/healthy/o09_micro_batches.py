import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
parts = 4

for x, y in loader:
    optimizer.zero_grad()
    for inputs, labels in zip(x.chunk(parts), y.chunk(parts)):
        loss = criterion(model(inputs), labels) * len(inputs) / len(x)
        loss.backward()
    optimizer.step()

for x, y in loader:
    micro_batches = list(zip(x.split(4), y.split(4)))
    for inputs, labels in micro_batches:
        loss = criterion(model(inputs), labels)
        (loss / len(micro_batches)).backward()
    optimizer.step()
    optimizer.zero_grad()

# One loss per task: their sum is what is minimised.
for x, y in loader:
    optimizer.zero_grad()
    for task in (0, 1):
        criterion(model(x), (y == task).long()).backward()
    optimizer.step()
