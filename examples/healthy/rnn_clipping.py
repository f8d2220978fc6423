"""A plain recurrent network remembers a signal for some steps; clipping tames the occasional large gradient."""

import torch
from torch import nn

DELAY = 4
LENGTH = 24
STEPS = 250
MAX_NORM = 1.0


def echo_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A random signal of pulses, and the mean of its values now and DELAY steps ago."""
    signal = torch.randn(size, LENGTH + DELAY, 1)
    delayed, now = signal[:, :LENGTH], signal[:, DELAY:]
    return signal, (now + delayed) / 2**0.5


class Echo(nn.Module):
    def __init__(self, hidden: int = 48) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, hidden, batch_first=True)
        self.output = nn.Linear(hidden, 1)
        # An orthogonal matrix neither shrinks nor grows what the network remembers.
        nn.init.orthogonal_(self.rnn.weight_hh_l0)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(signal)
        return self.output(states[:, DELAY:])


def main() -> None:
    torch.manual_seed(0)
    model = Echo()
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses, clipped = [], 0
    for step in range(STEPS):
        model.train()
        signal, wanted = echo_batch(32)
        optimizer.zero_grad()
        loss = criterion(model(signal), wanted)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(loss.item())
        clipped += int(norm > MAX_NORM)
        if (step + 1) % 50 == 0:
            model.eval()
            with torch.no_grad():
                signal, wanted = echo_batch(128)
                fresh = criterion(model(signal), wanted).item()
            print(f"step {step + 1}: loss {losses[-1]:.4f}, on fresh signals {fresh:.4f}, norm {norm:.3f}")
    print(f"{clipped} of {STEPS} steps were clipped")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
