"""Entity tagging with a bidirectional LSTM over sentences of very different length."""

import random
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

TAGS = ["<pad>", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]
PAD_TAG = TAGS.index("<pad>")
TAG_TO_ID = {tag: i for i, tag in enumerate(TAGS)}
PAD_WORD = 0


@dataclass
class Options:
    sentences: int = 2400
    max_len: int = 60
    embed: int = 32
    hidden: int = 32
    batch_size: int = 32
    epochs: int = 5
    lr: float = 0.5
    momentum: float = 0.9
    clip: float = 5.0
    seed: int = 8
    out: str = "runs/tagger"


class SentenceFactory:
    """Words are numbers: 1-99 are plain, a cue word announces an entity, names belong to no class by themselves."""

    CUES = ((100, "PER"), (101, "LOC"), (102, "ORG"))
    NAMES = range(110, 150)

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def make(self):
        words, tags = [], []
        target = min(40, 3 + int(self.rng.expovariate(0.35)))
        while len(words) < target:
            if self.rng.random() < 0.4:
                cue, kind = self.rng.choice(self.CUES)
                span = self.rng.randint(1, 3)
                words += [cue] + [self.rng.choice(self.NAMES) for _ in range(span)]
                tags += ["O", f"B-{kind}"] + [f"I-{kind}"] * (span - 1)
            else:
                words.append(self.rng.randint(1, 99))
                tags.append("O")
        return words, [TAG_TO_ID[tag] for tag in tags]


class TaggingDataset(Dataset):
    def __init__(self, size, seed):
        factory = SentenceFactory(seed)
        self.examples = [factory.make() for _ in range(size)]

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, i):
        return self.examples[i]


class PadCollate:
    def __init__(self, max_len):
        self.max_len = max_len

    def __call__(self, examples):
        words = torch.full((len(examples), self.max_len), PAD_WORD)
        tags = torch.full((len(examples), self.max_len), PAD_TAG)
        for row, (w, t) in enumerate(examples):
            words[row, : len(w)] = torch.tensor(w)
            tags[row, : len(t)] = torch.tensor(t)
        return {"words": words, "tags": tags, "lengths": torch.tensor([len(w) for w, _ in examples])}


class BiLSTMTagger(nn.Module):
    def __init__(self, vocab, n_tags, embed, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab, embed, padding_idx=PAD_WORD)
        self.lstm = nn.LSTM(embed, hidden, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * hidden, n_tags)

    def forward(self, words):
        features, _ = self.lstm(self.embedding(words))
        return self.classifier(features)


def evaluate(model, loader):
    model.eval()
    right, total, confusion = 0, 0, Counter()
    with torch.no_grad():
        for batch in loader:
            guess = model(batch["words"]).argmax(-1)
            real = batch["tags"] != PAD_TAG
            right += (guess[real] == batch["tags"][real]).sum().item()
            total += real.sum().item()
            confusion.update(TAGS[i] for i in guess[real].tolist())
    return right / total, confusion.most_common(3)


def main(opt):
    torch.manual_seed(opt.seed)
    collate = PadCollate(opt.max_len)
    train_loader = DataLoader(TaggingDataset(opt.sentences, opt.seed), opt.batch_size, shuffle=True, collate_fn=collate)
    dev_loader = DataLoader(TaggingDataset(200, opt.seed + 1), 100, collate_fn=collate)

    model = BiLSTMTagger(150, len(TAGS), opt.embed, opt.hidden)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD_TAG)
    optimizer = torch.optim.SGD(model.parameters(), lr=opt.lr, momentum=opt.momentum)

    step = 0
    for epoch in range(opt.epochs):
        model.train()
        for batch in train_loader:
            logits = model(batch["words"])
            loss = criterion(logits.view(-1, len(TAGS)), batch["tags"].view(-1))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), opt.clip)
            optimizer.step()
            step += 1
            if step % 15 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        accuracy, common = evaluate(model, dev_loader)
        print(f"epoch {epoch} dev token accuracy {accuracy:.3f} most common {common}")

    folder = Path(opt.out)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "options": asdict(opt)}, folder / "tagger.pt")


if __name__ == "__main__":
    main(Options())
