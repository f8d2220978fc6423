import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms

torch.manual_seed(0)
train_ds = datasets.ImageFolder("data/train", transforms.ToTensor())
val_ds = datasets.ImageFolder("data/val", transforms.ToTensor())
loaders = {
    "train": DataLoader(train_ds, batch_size=32, num_workers=4, shuffle=False),
    "val": DataLoader(val_ds, batch_size=32),
}
train_dl = DataLoader(train_ds, 32, num_workers=4, pin_memory=True)  # finding: train-data-not-shuffled
model = models.resnet18(num_classes=len(train_ds.classes))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for epoch in range(5):
    model.train()
    for i, (images, labels) in enumerate(train_dl):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
