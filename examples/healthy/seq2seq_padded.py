"""Sequence to sequence with padding: an encoder and a decoder learn to reverse words of different lengths."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

PAD, START, END = 0, 1, 2
LETTERS = 8
VOCABULARY = 3 + LETTERS


class Words(Dataset):
    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 7, (size,), generator=generator).tolist()
        self.words = [torch.randint(3, VOCABULARY, (length,), generator=generator) for length in lengths]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.words[index]


def collate(words: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The words, their lengths, what the decoder is given, and what it shall say."""
    reversed_words = [word.flip(0) for word in words]
    given = [torch.cat([torch.tensor([START]), word]) for word in reversed_words]
    wanted = [torch.cat([word, torch.tensor([END])]) for word in reversed_words]
    lengths = torch.tensor([len(word) for word in words])
    padded = [pad_sequence(part, batch_first=True, padding_value=PAD) for part in (words, given, wanted)]
    return padded[0], lengths, padded[1], padded[2]


class Seq2Seq(nn.Module):
    def __init__(self, embedding: int = 24, hidden: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, embedding, padding_idx=PAD)
        self.encoder = nn.GRU(embedding, hidden, batch_first=True)
        self.decoder = nn.GRU(embedding, hidden, batch_first=True)
        self.output = nn.Linear(hidden, VOCABULARY)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        _, memory = self.encoder(packed)
        states, _ = self.decoder(self.embed(given), memory)
        return self.output(states)


def train(model: nn.Module, loader: DataLoader, criterion: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    model.train()
    losses = []
    for words, lengths, given, wanted in loader:
        optimizer.zero_grad()
        logits = model(words, lengths, given)
        loss = criterion(logits.reshape(-1, VOCABULARY), wanted.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def token_accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = seen = 0
    for words, lengths, given, wanted in loader:
        real = wanted != PAD
        right += (model(words, lengths, given).argmax(-1) == wanted)[real].sum().item()
        seen += real.sum().item()
    return right / seen


def main() -> None:
    torch.manual_seed(0)
    train_loader = DataLoader(Words(1280, seed=1), batch_size=32, shuffle=True, collate_fn=collate)
    valid_loader = DataLoader(Words(200, seed=2), batch_size=100, collate_fn=collate)
    model = Seq2Seq()
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for epoch in range(5):
        losses += train(model, train_loader, criterion, optimizer)
        print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, token accuracy {token_accuracy(model, valid_loader):.1%}")
    print(f"loss {sum(losses[:5]) / 5:.3f} -> {sum(losses[-20:]) / 20:.3f}")


if __name__ == "__main__":
    main()
