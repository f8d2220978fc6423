"""The adding problem: a plain recurrent net has to add up the marked numbers of a sequence."""

import argparse
import os

import numpy as np
import torch
import torch.nn as nn


class AddingNet(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.rnn = nn.RNN(2, hidden_size, nonlinearity="relu", batch_first=True)
        self.readout = nn.Linear(hidden_size, 1)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.rnn.weight_ih_l0, std=0.1)
        nn.init.eye_(self.rnn.weight_hh_l0)
        nn.init.zeros_(self.rnn.bias_ih_l0)
        nn.init.zeros_(self.rnn.bias_hh_l0)

    def forward(self, seq):
        states, _ = self.rnn(seq)
        return self.readout(states[:, -1]).squeeze(-1)


def sample_batch(rng, batch_size, length):
    values = rng.uniform(0, 1, (batch_size, length)).astype(np.float32)
    marks = (rng.uniform(0, 1, (batch_size, length)) < 0.3).astype(np.float32)
    seq = np.stack([values, marks], axis=-1)
    target = (values * marks).sum(1)
    return torch.from_numpy(seq), torch.from_numpy(target)


def evaluate(net, rng, opts):
    net.eval()
    with torch.no_grad():
        seq, target = sample_batch(rng, 500, opts.length)
        error = (net(seq) - target).abs().mean().item()
    net.train()
    return error


class RunningMean:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)

    def flush(self):
        mean = sum(self.values) / len(self.values)
        self.values = []
        return mean


def train(opts):
    torch.manual_seed(opts.seed)
    train_rng = np.random.default_rng(opts.seed)
    test_rng = np.random.default_rng(opts.seed + 1)

    net = AddingNet(opts.hidden)
    optimizer = torch.optim.SGD(net.parameters(), lr=opts.lr, momentum=opts.momentum)
    criterion = nn.MSELoss()
    meter = RunningMean()
    best = float("inf")
    os.makedirs(opts.checkpoint_dir, exist_ok=True)

    for iteration in range(1, opts.iterations + 1):
        seq, target = sample_batch(train_rng, opts.batch, opts.length)
        optimizer.zero_grad()
        loss = criterion(net(seq), target)
        loss.backward()
        optimizer.step()
        nn.utils.clip_grad_norm_(net.parameters(), opts.clip)
        meter.update(loss.item())

        if iteration % opts.report == 0:
            error = evaluate(net, test_rng, opts)
            print(f"iteration {iteration:5d} | train mse {meter.flush():.5f} | test abs error {error:.4f}")
            if error < best:
                best = error
                torch.save(net.state_dict(), os.path.join(opts.checkpoint_dir, "adding.pt"))
    return best


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=600)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--report", type=int, default=100)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--checkpoint-dir", default="checkpoints/adding")
    return parser.parse_args()


if __name__ == "__main__":
    print("best abs error", train(parse()))
