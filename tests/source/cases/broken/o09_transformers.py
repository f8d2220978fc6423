import torch
from transformers import AutoModelForSequenceClassification

model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
optimizer = torch.optim.SGD(model.parameters(), lr=2e-5)


def train(loader, gradient_accumulation_steps):
    for step, batch in enumerate(loader):
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()  # finding: accumulation-not-divided
        if (step + 1) % gradient_accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
