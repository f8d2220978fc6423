from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab: int = 24
    context: int = 24
    channels: int = 28
    layers: int = 4
    kernel: int = 2
    batch: int = 32
    steps: int = 750
    lr: float = 3e-3
    weight_decay: float = 0.01
    eval_every: int = 150
    seed: int = 1234


class Corpus:
    """A token stream in which the next token depends on the last one and on the one three places back."""

    def __init__(self, cfg: Config, length: int = 40_000):
        g = torch.Generator().manual_seed(99)
        rule = torch.randint(0, cfg.vocab, (cfg.vocab, cfg.vocab), generator=g)
        noise = torch.rand(length, generator=g) < 0.05
        rand = torch.randint(0, cfg.vocab, (length,), generator=g).tolist()
        flips, table = noise.tolist(), rule.tolist()
        stream = rand[:3]
        for t in range(3, length):
            stream.append(rand[t] if flips[t] else table[stream[t - 1]][stream[t - 3]])
        data = torch.tensor(stream)
        cut = int(0.9 * length)
        self.train, self.valid = data[:cut], data[cut:]
        self.cfg = cfg

    def batch(self, split: str) -> tuple[Tensor, Tensor]:
        data = getattr(self, split)
        starts = torch.randint(0, len(data) - self.cfg.context - 1, (self.cfg.batch,))
        windows = data[starts[:, None] + torch.arange(self.cfg.context + 1)]
        return windows[:, :-1], windows[:, 1:]


class CausalLayer(nn.Module):
    def __init__(self, channels: int, kernel: int, dilation: int):
        super().__init__()
        self.pad = (kernel - 1) * dilation
        self.norm = nn.LayerNorm(channels)
        self.conv = nn.Conv1d(channels, 2 * channels, kernel, dilation=dilation)
        self.mix = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        h = F.pad(self.norm(x).transpose(1, 2), (self.pad, 0))
        filt, gate = self.conv(h).chunk(2, dim=1)
        return x + self.mix((torch.tanh(filt) * torch.sigmoid(gate)).transpose(1, 2))


class CausalConvLM(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.channels)
        self.layers = [CausalLayer(cfg.channels, cfg.kernel, 2**i) for i in range(cfg.layers)]
        self.norm = nn.LayerNorm(cfg.channels)
        self.readout = nn.Linear(cfg.channels, cfg.vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.readout(self.norm(h))


def lm_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    tokens, following = batch
    logits = model(tokens)
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), following.reshape(-1))


@torch.inference_mode()
def estimate(model: nn.Module, corpus: Corpus, batches: int = 10) -> float:
    model.eval()
    value = torch.stack([lm_loss(model, corpus.batch("valid")) for _ in range(batches)]).mean().item()
    model.train()
    return value


def train(cfg: Config) -> nn.Module:
    torch.manual_seed(cfg.seed)
    corpus = Corpus(cfg)
    model = CausalConvLM(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=cfg.steps, eta_min=cfg.lr / 10)
    history: list[float] = []
    for step in range(cfg.steps):
        loss = lm_loss(model, corpus.batch("train"))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        history.append(loss.item())
        if (step + 1) % cfg.eval_every == 0:
            recent = sum(history[-50:]) / 50
            print(f"{step + 1:5d} | train {recent:.3f} | valid {estimate(model, corpus):.3f}")
    return model


@torch.no_grad()
def sample(model: nn.Module, prompt: list[int], length: int) -> list[int]:
    model.eval()
    tokens = list(prompt)
    for _ in range(length):
        logits = model(torch.tensor([tokens[-24:]]))[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens


def main() -> None:
    cfg = Config()
    print(asdict(cfg))
    model = train(cfg)
    print("sample:", sample(model, [3, 1, 4, 1], 20))


if __name__ == "__main__":
    main()
