"""The same function is called twice, and what it takes from around it has changed in between."""

import torch
import torch.nn.functional as F


class Holder:
    shared = None

    def __init__(self):
        self.out = None

    def get(self):
        return self.out

    def passed_on(self):
        return self.get()


def of_owner(loader, model, opt):
    holder = Holder()
    for x, y in loader:
        opt.zero_grad()
        holder.out = torch.softmax(model(x), 1)
        print(holder.get().max(), holder.passed_on().max())
        holder.out = model(x)
        F.cross_entropy(holder.get(), y).backward()
        F.cross_entropy(holder.passed_on(), y).backward()
        opt.step()


def of_closure(loader, model, opt):
    for x, y in loader:
        opt.zero_grad()
        out = torch.softmax(model(x), 1)

        def get():
            return out

        def passed_on():
            return get()

        print(get().max(), passed_on().max())
        out = model(x)
        F.cross_entropy(get(), y).backward()
        F.cross_entropy(passed_on(), y).backward()
        opt.step()


def shared():
    return Holder.shared


def of_class(x, y):
    Holder.shared = torch.softmax(x, 1)
    print(shared())
    Holder.shared = x
    return F.cross_entropy(shared(), y)


STATE = torch.softmax(torch.load("a"), 1)
TWICE = True


def of_module():
    return STATE


def prediction(x):
    return torch.softmax(x, 1) if TWICE else x


def collected():
    return []


print(of_module(), prediction(torch.load("x")))
STATE = torch.load("b")
TWICE = False
F.cross_entropy(of_module(), torch.load("y"))
F.cross_entropy(prediction(torch.load("x")), torch.load("y"))
outputs = collected()
outputs.append(torch.softmax(torch.load("a"), 1))
others = collected()
others.append(torch.load("b"))
F.cross_entropy(others[0], torch.load("y"))
