"""A character-level language model: an LSTM learns the sentences of a small grammar."""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn

SUBJECTS = "the cat,a dog,my old friend,every child,the green bird,our teacher".split(",")
VERBS = "sees,likes,follows,hears,draws,forgets".split(",")
OBJECTS = "the moon,a red ball,some music,the long river,a quiet house,nothing".split(",")


def make_text(sentences: int, seed: int) -> str:
    rng = random.Random(seed)
    return "".join(f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}.\n" for _ in range(sentences))


class CharLSTM(nn.Module):
    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, 24)
        self.lstm = nn.LSTM(24, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(characters))
        return self.head(states)


def batch_of(text: torch.Tensor, batch_size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random stretches of the text, and the same stretches one character later."""
    starts = torch.randint(0, len(text) - length - 1, (batch_size,))
    stretches = torch.stack([text[start : start + length + 1] for start in starts.tolist()])
    return stretches[:, :-1], stretches[:, 1:]


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    characters, following = batch
    return F.cross_entropy(model(characters).flatten(0, 1), following.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    text = make_text(sentences=800, seed=args.seed)
    codes = {character: code for code, character in enumerate(sorted(set(text)))}
    data = torch.tensor([codes[character] for character in text])
    split = int(0.9 * len(data))
    train_data, valid_data = data[:split], data[split:]

    model = CharLSTM(len(codes), args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    losses = []
    for step in range(args.steps):
        model.train()
        loss = loss_of(model, batch_of(train_data, args.batch_size, args.length))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            model.eval()
            with torch.no_grad():
                valid = loss_of(model, batch_of(valid_data, 64, args.length)).item()
            print(f"step {step + 1}: train {losses[-1]:.3f}, valid {valid:.3f}")
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
