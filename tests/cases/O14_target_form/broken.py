import logging
import math
import random

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset

logging.basicConfig(level=logging.INFO, format="%(message)s")
logger = logging.getLogger("topics")


class Config:
    seed = 42
    vocab_size = 600
    n_topics = 12
    words_per_topic = 40
    doc_len = (20, 60)
    emb_dim = 64
    hidden = 64
    batch_size = 48
    max_steps = 600
    eval_every = 150
    warmup = 30
    lr = 4e-3
    ckpt = "topics.pt"


class ArticleStream(IterableDataset):
    """Endless articles: each is about one to four topics and borrows most of its words from them."""

    def __init__(self, cfg, seed):
        self.cfg = cfg
        self.rng = random.Random(seed)

    def __iter__(self):
        while True:
            yield self.article()

    def article(self):
        cfg, rng = self.cfg, self.rng
        topics = rng.sample(range(cfg.n_topics), rng.randint(1, 4))
        words = []
        for _ in range(rng.randint(*cfg.doc_len)):
            if rng.random() < 0.7:
                words.append(rng.choice(topics) * cfg.words_per_topic + rng.randrange(cfg.words_per_topic))
            else:
                words.append(rng.randrange(cfg.vocab_size))
        return {"words": words, "topics": topics}


class BagCollator:
    def __init__(self, n_topics):
        self.n_topics = n_topics

    def __call__(self, articles):
        offsets, flat = [], []
        labels = torch.zeros(len(articles), self.n_topics)
        for row, article in enumerate(articles):
            offsets.append(len(flat))
            flat.extend(article["words"])
            labels[row, article["topics"]] = 1.0
        return {"input_ids": torch.tensor(flat), "offsets": torch.tensor(offsets), "labels": labels}


class TopicModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.bag = nn.EmbeddingBag(cfg.vocab_size, cfg.emb_dim, mode="mean")
        self.norm = nn.LayerNorm(cfg.emb_dim)
        self.mlp = nn.Sequential(nn.Linear(cfg.emb_dim, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, cfg.n_topics))
        self.loss_fct = nn.CrossEntropyLoss()

    def forward(self, input_ids, offsets, labels=None):
        logits = self.mlp(self.norm(self.bag(input_ids, offsets)))
        loss = self.loss_fct(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


def make_scheduler(optimizer, cfg):
    def factor(step):
        if step < cfg.warmup:
            return (step + 1) / cfg.warmup
        progress = (step - cfg.warmup) / (cfg.max_steps - cfg.warmup)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def micro_f1(model, batches):
    model.eval()
    true_pos = predicted = actual = 0
    with torch.no_grad():
        for batch in batches:
            guess = (model(batch["input_ids"], batch["offsets"])["logits"].sigmoid() > 0.5).float()
            true_pos += (guess * batch["labels"]).sum().item()
            predicted += guess.sum().item()
            actual += batch["labels"].sum().item()
    model.train()
    return 2 * true_pos / max(predicted + actual, 1.0)


def train(cfg):
    random.seed(cfg.seed)
    torch.manual_seed(cfg.seed)
    collator = BagCollator(cfg.n_topics)
    loader = DataLoader(ArticleStream(cfg, seed=cfg.seed), batch_size=cfg.batch_size, collate_fn=collator)
    held_out = ArticleStream(cfg, seed=cfg.seed + 1)
    dev = [collator([held_out.article() for _ in range(100)]) for _ in range(4)]

    model = TopicModel(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    scheduler = make_scheduler(optimizer, cfg)
    smooth = None
    model.train()
    for step, batch in enumerate(loader, start=1):
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        if step % 50 == 0:
            logger.info("step %4d | loss %.4f | lr %.5f", step, smooth, scheduler.get_last_lr()[0])
        if step % cfg.eval_every == 0:
            logger.info("step %4d | dev micro-F1 %.3f", step, micro_f1(model, dev))
        if step >= cfg.max_steps:
            break
    torch.save(model.state_dict(), cfg.ckpt)


if __name__ == "__main__":
    train(Config())
