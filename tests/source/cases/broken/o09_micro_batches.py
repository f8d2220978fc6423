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
        loss = criterion(model(inputs), labels)
        loss.backward()  # finding: accumulation-not-divided
    optimizer.step()

batches = iter(loader)
for step in range(1):
    for micro_step in range(parts):
        x, y = next(batches)
        criterion(model(x), y).backward()  # finding: accumulation-not-divided
    optimizer.step()
    optimizer.zero_grad()

for x, y in loader:
    micro_batches = list(zip(x.split(4), y.split(4)))
    for inputs, labels in micro_batches:
        criterion(model(inputs), labels).backward()  # finding: accumulation-not-divided
    optimizer.step()
    optimizer.zero_grad()
