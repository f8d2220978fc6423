import torch
from timm.utils import NativeScaler


def train_one_epoch(model, criterion, loader, optimizer, device, loss_scaler, max_norm=0):
    model.train()
    for samples, targets in loader:
        samples, targets = samples.to(device), targets.to(device)
        with torch.autocast("cuda"):
            outputs = model(samples)
            loss = criterion(outputs, targets)
        optimizer.zero_grad()
        is_second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
        loss_scaler(loss, optimizer, clip_grad=max_norm, parameters=model.parameters(), create_graph=is_second_order)


scaler = NativeScaler()
