import torch
from torch import nn
from transformers import get_cosine_schedule_with_warmup


class CFG:
    gradient_accumulation_steps = 2
    max_grad_norm = 10
    epochs = 4


def train_fn(train_loader, model, criterion, optimizer, scheduler):
    model.train()
    for step, (inputs, labels) in enumerate(train_loader):
        loss = criterion(model(inputs), labels)
        if CFG.gradient_accumulation_steps > 1:
            loss = loss / CFG.gradient_accumulation_steps
        loss.backward()
        if (step + 1) % CFG.gradient_accumulation_steps == 0 or step == len(train_loader) - 1:
            nn.utils.clip_grad_norm_(model.parameters(), CFG.max_grad_norm)
            scheduler.step()  # finding: scheduler-misuse
            optimizer.step()
            optimizer.zero_grad()


def build(model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    return optimizer, get_cosine_schedule_with_warmup(optimizer, 0, len(loader) * CFG.epochs)
