import torch
from torch import nn


def plain(model, loader, optimizer, use_amp, clip):
    scaler = torch.cuda.amp.GradScaler(enabled=use_amp)
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()


def conditions_under_two_names(model, loader, optimizer, args):
    scaler = torch.cuda.amp.GradScaler() if args.amp else None
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if args.amp:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if scaler:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if args.amp:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()


def switched_off(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda", enabled=False)  # bfloat16 needs no scaling
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def adversarial(generator, critic, loader, g_opt, d_opt):
    scaler = torch.amp.GradScaler("cuda")
    for real, _ in loader:
        d_opt.zero_grad()
        d_loss = critic(generator(torch.randn(4, 8)).detach()).mean() - critic(real).mean()
        scaler.scale(d_loss).backward()
        scaler.unscale_(d_opt)
        nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
        scaler.step(d_opt)
        g_opt.zero_grad()
        scaler.scale(-critic(generator(torch.randn(4, 8))).mean()).backward()
        scaler.unscale_(g_opt)
        nn.utils.clip_grad_norm_(generator.parameters(), 1.0)
        scaler.step(g_opt)
        scaler.update()


def unscaled_then_stepped(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        optimizer.step()
        scaler.update()


def only_one_of_two_is_scaled(model, judge, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    judge_opt = torch.optim.SGD(judge.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        judge_opt.zero_grad()
        nn.functional.mse_loss(judge(x), y).backward()
        nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
        judge_opt.step()
