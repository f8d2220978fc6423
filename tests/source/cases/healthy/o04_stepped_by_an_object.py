"""Objects of a library that are given the optimizer, with names that sound like actions, batches and settings."""

import torch
from fastlib import Output, make
from torch import nn


def reinforce(states, actions, returns):
    actor = nn.Linear(4, 2)
    act_optim = torch.optim.Adam(actor.parameters(), lr=1e-3)
    stepper = make("step")
    for _ in range(10):
        act_optim.zero_grad()
        log_prob = torch.log_softmax(actor(states), 1).gather(1, actions)
        (-(log_prob[:, 0] * returns).mean()).backward()
        stepper.step(act_optim)


def reinforce_in_a_pair(states, actions, returns, learner):
    actor = nn.Linear(4, 2)
    updater = torch.optim.Adam(actor.parameters(), lr=1e-3)
    for _ in range(10):
        updater.zero_grad()
        log_prob = torch.log_softmax(actor(states), 1).gather(1, actions)
        (-(log_prob[:, 0] * returns).mean()).backward()
        learner.step((updater, actions))


def updated(x, y):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    batch_updater = make("update")
    for _ in range(10):
        opt.zero_grad()
        (model(x) - y).square().mean().backward()
        batch_updater.update(opt)


def trained(x, y):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    config_trainer = make("train")
    for _ in range(10):
        opt.zero_grad()
        (model(x) - y).square().mean().backward()
        config_trainer.update(opt)


def learned(x, y):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    output_learner = Output(opt)
    for _ in range(10):
        opt.zero_grad()
        (model(x) - y).square().mean().backward()
        output_learner.update()


def given_the_model(x, y):
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    result = make("fused")
    for _ in range(10):
        opt.zero_grad()
        (model(x) - y).square().mean().backward()
        result.update(model)


x = torch.randn(8, 4)
reinforce(x, torch.randint(2, (8, 1)), torch.randn(8))
reinforce_in_a_pair(x, torch.randint(2, (8, 1)), torch.randn(8), make("learner"))
updated(x, x.sum(1, keepdim=True))
trained(x, x.sum(1, keepdim=True))
learned(x, x.sum(1, keepdim=True))
given_the_model(x, x.sum(1, keepdim=True))
