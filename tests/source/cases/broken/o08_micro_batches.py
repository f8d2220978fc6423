import torch
from torch import nn
from transformers import get_cosine_schedule_with_warmup


def fine_tune(model, loader, accumulate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    updates = len(loader) // accumulate
    scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=10, num_training_steps=updates)
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / accumulate
        loss.backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()  # finding: scheduler-misuse
