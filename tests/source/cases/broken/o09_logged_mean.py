import torch
from torch import nn


def fit(model, loader, writer, steps_to_accumulate=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    updates = len(loader) / steps_to_accumulate
    running_loss, global_step = 0.0, 0
    for x, y in loader:
        global_step += 1
        loss = criterion(model(x), y)
        loss.backward()  # finding: accumulation-not-divided
        running_loss += loss.item()
        if global_step % steps_to_accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            running_loss /= steps_to_accumulate
            writer.add_scalar("loss", running_loss, global_step)
            running_loss = 0.0
    return updates
