import math
import os
import random
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader


@dataclass
class IntentConfig:
    vocab_size: int = 120
    hidden_size: int = 48
    num_heads: int = 4
    num_layers: int = 2
    max_position: int = 24
    num_labels: int = 16
    pad_token_id: int = 0
    cls_token_id: int = 1


@dataclass
class TrainingArguments:
    output_dir: str = "./runs/intent"
    num_train_epochs: int = 6
    per_device_batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_ratio: float = 0.05
    max_grad_norm: float = 1.0
    logging_steps: int = 50
    seed: int = 42


class IntentEmbeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position = nn.Embedding(config.max_position, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, input_ids):
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        return self.norm(self.word(input_ids) + self.position(positions))


class IntentClassifier(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embeddings = IntentEmbeddings(config)
        layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.num_heads,
            dim_feedforward=2 * config.hidden_size,
            dropout=0.0,
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, config.num_layers, enable_nested_tensor=False)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.activation = nn.Softmax(dim=-1)
        self.loss_fct = nn.CrossEntropyLoss()

    def forward(self, input_ids, attention_mask, labels: torch.Tensor | None = None):
        hidden = self.encoder(self.embeddings(input_ids), src_key_padding_mask=attention_mask == 0)
        pooled = torch.tanh(self.pooler(hidden[:, 0]))
        logits = self.activation(self.classifier(pooled))
        output = {"logits": logits}
        if labels is not None:
            output["loss"] = self.loss_fct(logits, labels)
        return output


def make_examples(n, config, rng):
    """Utterances of filler words with two keywords of their intent somewhere in them."""
    examples = []
    for _ in range(n):
        label = rng.randrange(config.num_labels)
        keywords = [2 + 3 * label + k for k in range(3)]
        words = [rng.randrange(2 + 3 * config.num_labels, config.vocab_size) for _ in range(rng.randint(5, 16))]
        for spot in rng.sample(range(len(words)), 2):
            words[spot] = rng.choice(keywords)
        examples.append({"input_ids": [config.cls_token_id, *words], "label": label})
    return examples


class DataCollatorWithPadding:
    def __init__(self, pad_token_id):
        self.pad_token_id = pad_token_id

    def __call__(self, features):
        longest = max(len(f["input_ids"]) for f in features)
        ids = torch.full((len(features), longest), self.pad_token_id)
        for row, f in zip(ids, features, strict=True):
            row[: len(f["input_ids"])] = torch.tensor(f["input_ids"])
        return {
            "input_ids": ids,
            "attention_mask": (ids != self.pad_token_id).long(),
            "labels": torch.tensor([f["label"] for f in features]),
        }


def get_linear_schedule(optimizer, warmup_steps, total_steps):
    def factor(step):
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return max(0.05, (total_steps - step) / (total_steps - warmup_steps))

    return LambdaLR(optimizer, factor)


class MiniTrainer:
    def __init__(self, model, args, train_dataset, eval_dataset, collator):
        self.model, self.args = model, args
        self.train_dl = DataLoader(train_dataset, args.per_device_batch_size, shuffle=True, collate_fn=collator)
        self.eval_dl = DataLoader(eval_dataset, 100, collate_fn=collator)
        total = args.num_train_epochs * len(self.train_dl)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.0)
        self.lr_scheduler = get_linear_schedule(self.optimizer, math.ceil(args.warmup_ratio * total), total)

    def training_step(self, inputs):
        self.model.train()
        loss = self.model(**inputs)["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.lr_scheduler.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self):
        step, tr_loss = 0, torch.tensor(0.0)
        for epoch in range(self.args.num_train_epochs):
            for inputs in self.train_dl:
                tr_loss += self.training_step(inputs)
                step += 1
                if step % self.args.logging_steps == 0:
                    print({"step": step, "loss": round(tr_loss.item() / self.args.logging_steps, 4), "epoch": epoch})
                    tr_loss.zero_()
            print({"epoch": epoch, "eval_accuracy": round(self.evaluate(), 4)})
        os.makedirs(self.args.output_dir, exist_ok=True)
        torch.save(self.model.state_dict(), os.path.join(self.args.output_dir, "pytorch_model.bin"))

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        correct = total = 0
        for inputs in self.eval_dl:
            predictions = self.model(**inputs)["logits"].argmax(-1)
            correct += (predictions == inputs["labels"]).sum().item()
            total += len(predictions)
        return correct / total


def main():
    config, args = IntentConfig(), TrainingArguments()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    trainer = MiniTrainer(
        IntentClassifier(config),
        args,
        make_examples(3200, config, rng),
        make_examples(400, config, rng),
        DataCollatorWithPadding(config.pad_token_id),
    )
    trainer.train()


if __name__ == "__main__":
    main()
