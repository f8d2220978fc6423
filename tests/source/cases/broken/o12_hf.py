import torch
from torch import nn
from transformers import Trainer


class MyTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        labels = inputs.get("labels")
        outputs = model(**inputs)
        probs = torch.nn.functional.softmax(outputs.logits, dim=-1)  # finding: double-softmax
        loss_fct = nn.CrossEntropyLoss()
        loss = loss_fct(probs.view(-1, 5), labels.view(-1))
        return (loss, outputs) if return_outputs else loss


t = MyTrainer(model=None)
t.train()
