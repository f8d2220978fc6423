"""Low-rank adaptation of a frozen encoder to a new intent-classification task."""

import argparse
import math
import os

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, SEQ_LEN, INTENTS = 64, 16, 6


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        out = F.scaled_dot_product_attention(q, k, v)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, d))


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class IntentModel(nn.Module):
    def __init__(self, dim=48, heads=4, depth=2):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.pos = nn.Embedding(SEQ_LEN, dim)
        self.layers = nn.ModuleList(EncoderLayer(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, INTENTS)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.norm(x).mean(1))


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base
        self.scale = alpha / rank
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scale


def inject_lora(module, targets, rank, alpha):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and name in targets:
            setattr(module, name, LoRALinear(child, rank, alpha))
        else:
            inject_lora(child, targets, rank, alpha)
    return module


def freeze_base(model):
    for param in model.parameters():
        param.requires_grad_(False)
    model.classifier.requires_grad_(True)


def prepare_model(args):
    model = IntentModel()
    if args.base:
        model.load_state_dict(torch.load(args.base, weights_only=True))
    freeze_base(model)
    model = inject_lora(model, args.targets.split(","), args.rank, args.alpha)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    print(f"trainable parameters: {trainable:,} of {total:,}")
    return model


def make_batch(size, gen):
    """The intent is told by a verb and an object somewhere among the other words."""
    tokens = torch.randint(10, VOCAB, (size, SEQ_LEN), generator=gen)
    verb = torch.randint(0, 2, (size,), generator=gen)
    thing = torch.randint(0, 3, (size,), generator=gen)
    spots = torch.rand(size, SEQ_LEN, generator=gen).argsort(1)[:, :2]
    tokens.scatter_(1, spots, torch.stack([1 + verb, 5 + thing], dim=1))
    return {"input_ids": tokens, "labels": thing * 2 + verb}


def accuracy(model, batches):
    model.eval()
    with torch.no_grad():
        hits = [(model(b["input_ids"]).argmax(-1) == b["labels"]).float().mean().item() for b in batches]
    model.train()
    return sum(hits) / len(hits)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", help="state dict of the encoder; a random one is used if not given")
    parser.add_argument("--targets", default="q_proj,k_proj,v_proj,o_proj,fc1,fc2")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=16.0)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=123)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    held_out = [make_batch(200, gen) for _ in range(3)]
    model = prepare_model(args)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=args.lr, weight_decay=0.0)

    for step in range(args.steps):
        batch = make_batch(args.batch_size, gen)
        loss = F.cross_entropy(model(batch["input_ids"]), batch["labels"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 25 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")
    print(f"held-out accuracy {accuracy(model, held_out):.3f}")

    os.makedirs("checkpoints", exist_ok=True)
    state = {k: v for k, v in model.state_dict().items() if "lora_" in k or k.startswith("classifier")}
    torch.save(state, os.path.join("checkpoints", "intent_adapter.pt"))


if __name__ == "__main__":
    main()
