"""A training that looks around wherever its own code runs, and prints what it sees. Run by test_invisible.py."""

# ruff: noqa: E402 - it looks around before it imports torch, too
import atexit
import copy
import cProfile
import faulthandler
import gc
import inspect
import logging
import os
import pickle
import pstats
import re
import sys
import tempfile
import threading
import traceback
import warnings
import zlib
from typing import ClassVar

print("import machinery", [type(finder).__name__ for finder in sys.meta_path], len(sys.path_hooks), sys.orig_argv[1:])
with open(os.devnull) as nothing:
    print("the next descriptor", nothing.fileno())

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
logging.basicConfig(stream=sys.stdout, format="%(filename)s:%(lineno)d %(funcName)s %(message)s")
warnings.simplefilter("always")
warnings.filterwarnings("ignore", ".*multi-threaded")  # a thread of a worker's queue may be about to end
warnings.showwarning = lambda message, kind, file, line, *_: print("  warned", os.path.basename(file), line)
printed = set()
HERE = os.path.abspath(__file__)


def own_part(stack):
    """The same of any list of frames and lines."""
    for frame, line in stack:
        code = frame.f_code
        yield f"{code.co_filename}:{line} {code.co_qualname}"
        if code.co_name == "<module>" and code.co_filename == HERE:
            return


def dumped():
    """What faulthandler prints of this thread, down to the script's first frame."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=False)
        file.seek(0)
        text = re.sub("0x[0-9a-f]+", "0x", file.read())
    return text.partition(f'"{HERE}", line')[0].count("\n"), re.split(r"(?<=in <module>)\n", text)[0]


def stack_of(frame):
    """Down to the script's first frame: `python` has nothing below that one."""
    lines = []
    while frame is not None:
        lines.append((frame, frame.f_lineno))
        is_first = frame.f_code.co_name == "<module>" and frame.f_code.co_filename == HERE
        frame = None if is_first else frame.f_back
    return lines


def names_in(frame):
    """Of a frame around an optimizer's step, torch's `result` of a global hook is left out: there we have one."""
    is_step = frame.f_code.co_qualname.endswith("profile_hook_step.<locals>.wrapper")
    return sorted(set(frame.f_locals) - set({"result"} if is_step else ()))


def look(where):
    """Print the stack by all means there are, once for each place."""
    if where in printed:
        return
    printed.add(where)
    print("==", where)
    own = list(own_part(stack_of(sys._getframe(1))))
    print("  " + "\n  ".join(own))
    assert own == list(own_part([(info.frame, info.lineno) for info in inspect.stack()[1:]]))
    assert own == list(own_part(list(traceback.walk_stack(sys._getframe(1)))))
    print("  locals", [names_in(frame) for frame, _ in stack_of(sys._getframe(1))])
    print("  dump", dumped())
    for level in range(1, len(own) + 1):
        warnings.warn("look", stacklevel=level)
        logging.warning("seen", stacklevel=level)


def attempt(where, action):
    """Print the traceback of what fails in there."""
    try:
        action()
    except Exception as error:
        print("==", where, "raised", re.sub("0x[0-9a-f]+", "0x", "".join(traceback.format_exception(error))))
        entries = list(traceback.walk_tb(error.__traceback__))
        print("  frames", [(frame.f_code.co_qualname, frame.f_lineno, line) for frame, line in entries])


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        look("forward of an autograd function")
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        look("backward of an autograd function")
        return gradient * 2


class Counting(torch.Tensor):
    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(getattr(function, "__name__", str(function)))
        if function is F.cross_entropy:
            look("__torch_function__")
        return super().__torch_function__(function, types, args, kwargs or {})


class Inner(nn.Module):
    def forward(self, x, fail=False):
        look("inner forward")
        if fail:
            raise ValueError("inside of a forward")
        return Double.apply(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(4, 8), Inner(), nn.Linear(8, 2)

    def forward(self, x, fail=False):
        look("forward")
        return self.last(self.inner(torch.relu(self.first(x)), fail=fail))

    def train(self, mode=True):
        look("train()")
        return super().train(mode)


class Points(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is None:
            look("__getitem__")
        seen = [f"{frame.f_code.co_qualname}:{line}" for frame, line in stack_of(sys._getframe())]
        return (
            torch.arange(4.0) + index,
            index % 2,
            " ".join(seen[: seen.index(next(s for s in seen if "_worker" in s or "<module>" in s))]),
        )


def collate(samples):
    look("collate")
    return torch.stack([x for x, _, _ in samples]), torch.tensor([y for _, y, _ in samples]), samples[0][2]


class Descent(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        look("zero_grad")
        super().zero_grad(set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        look("optimizer step")
        return super().step(closure)


class Schedule(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        look("get_lr")
        return [group["lr"] * 0.99 for group in self.optimizer.param_groups]


def rate(epoch):
    look("lr_lambda")
    return 0.9**epoch


def my_loss(output, target):
    look("loss")
    return F.cross_entropy(output, target)


def parameters(model):
    """A generator of the user's own, drawn by torch."""
    look("parameters")
    yield from list(model.parameters())


model = Net()
model.first.register_forward_hook(lambda *_: look("forward hook"))
model.last.register_forward_pre_hook(lambda *_: look("forward pre-hook"))
model.last.weight.register_hook(lambda gradient: look("gradient hook"))
optimizer = Descent(model.parameters(), 0.1)
optimizer.register_step_pre_hook(lambda *_: look("step pre-hook"))
optimizer.register_step_post_hook(lambda *_: look("step post-hook"))
plain = torch.optim.Adam(model.parameters(), 1e-4)
schedulers = [Schedule(optimizer), torch.optim.lr_scheduler.LambdaLR(optimizer, rate)]
loader = DataLoader(Points(), 4, collate_fn=collate)


def closure():
    look("closure")
    plain.zero_grad()
    loss = my_loss(model(torch.ones(2, 4)), torch.tensor([0, 1]))
    loss.backward()
    return loss


def train(steps, wrap=lambda x: x):
    for _ in range(steps):
        for x, y, _ in loader:
            optimizer.zero_grad()
            loss = my_loss(model(wrap(x)), wrap(y))
            loss.register_hook(lambda gradient: look("hook in a backward"))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            for scheduler in schedulers:
                scheduler.step()


def where_code_runs():
    model.train()
    train(40)
    plain.step(closure)
    nn.utils.clip_grad_value_(list(parameters(model)), 1.0)
    model.eval()
    attempt("a forward", lambda: model(torch.ones(1, 4), fail=True))
    attempt("a loss", lambda: F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 9])))
    attempt("a backward", lambda: torch.ones(2).backward())
    attempt("a step", lambda: plain.step(lambda: 1 / 0))
    attempt("an import", lambda: __import__("nothing_of_this_name"))
    attempt("a load", lambda: model.load_state_dict({"nothing": torch.ones(1)}))
    attempt("a loader", lambda: list(DataLoader([1, 2], collate_fn=lambda batch: 1 / 0)))
    attempt("a scheduler", lambda: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / 0))


def modes_and_subclasses():
    class Functions(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Functions.calls += 1
            return function(*args, **(kwargs or {}))

    class Operations(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Operations.calls += 1
            return function(*args, **(kwargs or {}))

    train(30, wrap=lambda x: x.as_subclass(Counting))
    print("__torch_function__ of a subclass", len(Counting.calls), sorted(set(Counting.calls)))
    with Functions():
        train(30)
    with Operations():
        train(30)
    print("calls of modes", Functions.calls, Operations.calls)


def tracers():
    seen = []

    def trace(frame, event, argument):
        if frame.f_code.co_filename != HERE:
            return None
        seen.append((event, frame.f_lineno, frame.f_code.co_name))
        return trace

    sys.settrace(trace)
    train(1)
    sys.settrace(None)
    print("traced", len(seen), zlib.crc32(repr(seen).encode()))
    seen.clear()
    sys.setprofile(lambda frame, event, argument: event[0] == "c" and trace(frame, event, argument) and None)
    train(1)
    sys.setprofile(None)
    print("profiled", len(seen), zlib.crc32(repr(seen).encode()))
    profile = cProfile.Profile()
    profile.runcall(train, 1)
    rows = pstats.Stats(profile).stats.items()
    print("cProfile", sorted((name, line, calls[:2]) for (file, line, name), calls in rows if file == HERE))


def functions_of_torch():
    for function in (
        F.cross_entropy,
        F.mse_loss,
        F.softmax,
        torch.autograd.backward,
        torch.Tensor.backward,
        nn.utils.clip_grad_norm_,
        nn.Module.__call__,
        nn.Module._call_impl,
        torch.optim.Optimizer.zero_grad,
        torch.optim.SGD.step,
        DataLoader.__iter__,
    ):
        names = function.__name__, function.__module__, function.__qualname__, type(function).__name__
        text = inspect.getsource(function)
        same = function is copy.deepcopy(function)
        code = function.__code__
        where = code.co_name, code.co_qualname, code.co_firstlineno, os.path.basename(code.co_filename)
        print(
            names,
            str(inspect.signature(function)),
            len(text),
            text.splitlines()[0],
            same,
            where,
            sorted(vars(function)),
        )
        if "." not in function.__qualname__:
            print("  pickled", len(pickle.dumps(function)), pickle.loads(pickle.dumps(function)) is function)
    print(torch.jit.script(scripted)(torch.ones(2, 3), torch.tensor([0, 1])).item(), torch.jit.script(scripted).code)

    class Small(nn.Module):
        def forward(self, x, y):
            return F.cross_entropy(torch.relu(x), y)

    print(torch.fx.symbolic_trace(Small()).graph)
    print(torch.export.export(Small(), (torch.ones(2, 3), torch.tensor([0, 1]))).graph)


def scripted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.softmax(x, 1), y) + F.mse_loss(x, x)


def others():
    thread = threading.Thread(target=lambda: model(torch.ones(1, 4)) is printed.discard("forward") or look("a thread"))
    thread.start()
    thread.join()
    print("in a worker", [seen for _, _, seen in DataLoader(Points(), 4, collate_fn=collate, num_workers=1)])
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        printed.clear()
        train(1)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    hooks = nn.modules.module
    print("hooks", len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks))
    print("threads", threading.enumerate() == [threading.main_thread()], len(gc.callbacks))
    print("import machinery", [type(finder).__name__ for finder in sys.meta_path])
    with open(os.devnull) as nothing:
        print("the next descriptor", nothing.fileno())


atexit.register(lambda: printed.discard("forward") or model(torch.ones(1, 4)))
where_code_runs()
modes_and_subclasses()
tracers()
functions_of_torch()
others()
sys.excepthook = lambda kind, error, trace: print(
    "excepthook", traceback.format_tb(trace), traceback.format_exception(error)
)
model(torch.ones(1, 4), fail=True)
