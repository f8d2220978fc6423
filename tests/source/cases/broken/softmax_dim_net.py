import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch.utils.data import DataLoader

train_set = torchvision.datasets.MNIST("data", train=True, transform=torchvision.transforms.ToTensor())
train_loader = DataLoader(train_set, batch_size=64, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.fc = nn.Linear(8 * 13 * 13, 10)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = self.fc(self.drop(torch.flatten(x, 1)))
        return F.softmax(x, 0)  # finding: softmax-dim


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = Net().to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for epoch in range(2):
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(torch.log(net(images) + 1e-9), labels)
        loss = loss + F.mse_loss(net(images), F.one_hot(labels, 10).float())
        loss.backward()
        optimizer.step()
