import torch
from project.models import Detector

model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)


def train(loader, accumulate):
    for step, batch in enumerate(loader):
        outputs = model(batch)  # its loss is a sum over boxes, scaled by the model itself
        outputs.loss.backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
