"""Only `capture/torch_hooks` sets an attribute of torch, registers a hook or enters a mode."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import unstuck

PACKAGE = Path(unstuck.__file__).parent
EXCEPT = ("capture/torch_hooks/", "gradients/", "helpers/")
"""`gradients` and `helpers` are called by the user's own program, which may hook what it likes."""
ADVICE = (
    "outside capture/torch_hooks. Observe a run with `Patches` (capture/torch_hooks/patches.py); for a hook, a mode or "
    "a replaced attribute in our own calls use or add a function with an undo in capture/torch_hooks/hooks.py."
)
HOOK = re.compile(r"register_\w*hook\w*")
MODES = ("TorchFunctionMode", "TorchDispatchMode", "saved_tensors_hooks")
METHODS = ("__torch_function__", "__torch_dispatch__")


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def names_of_torch(tree: ast.AST) -> set[str]:
    """What is imported from torch, by the names it has here."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or "torch" for alias in node.names if alias.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def targets_of(node: ast.AST) -> list[ast.expr]:
    """What a statement sets or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        return [part for target in node.targets for part in getattr(target, "elts", [target])]
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def changes_to_torch(tree: ast.AST) -> list[tuple[int, str]]:
    torch = names_of_torch(tree)
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        attributes = [target for target in targets_of(node) if isinstance(target, ast.Attribute)]
        found += [(each.lineno, f"sets {ast.unparse(each)}") for each in attributes if root_of(each) in torch]
        if isinstance(node, ast.Attribute | ast.Name):
            if HOOK.fullmatch(node.attr if isinstance(node, ast.Attribute) else node.id):
                found.append((node.lineno, f"registers a hook: {ast.unparse(node)}"))
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else root_of(node.func)
            if name in MODES:
                found.append((node.lineno, f"enters {name}"))
            elif name in ("setattr", "delattr") and node.args and root_of(node.args[0]) in torch:
                found.append((node.lineno, f"sets an attribute of {ast.unparse(node.args[0])}"))
        elif isinstance(node, ast.ClassDef):
            bases = {base.attr if isinstance(base, ast.Attribute) else root_of(base) for base in node.bases}
            methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            if bases.intersection(MODES) or methods.intersection(METHODS):
                found.append((node.lineno, f"class {node.name} is a mode of torch"))
    return found


def test_nobody_else_hooks_torch():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        if not where.startswith(EXCEPT):
            found += [f"{where}:{line} {what}" for line, what in changes_to_torch(ast.parse(path.read_text()))]
    assert not found, "\n".join([*found, ADVICE])


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.save = None",
        "import torch.nn.functional as F\nF.relu, x = 1, 2",
        "from torch import nn\nsetattr(nn.Module, 'train', None)",
        "from torch.optim import Optimizer\ndel Optimizer.step",
        "def f(model):\n    model.register_forward_pre_hook(print)",
        "from torch.optim import optimizer\noptimizer.register_optimizer_step_post_hook(print)",
        "from torch.overrides import TorchFunctionMode\nclass A(TorchFunctionMode): ...",
        "class A:\n    def __torch_function__(self): ...",
        "import torch\nwith torch.autograd.graph.saved_tensors_hooks(a, b): ...",
    ],
)
def test_the_scan_finds(text: str):
    assert changes_to_torch(ast.parse(text))


def test_the_scan_leaves_the_rest_alone():
    text = "import torch\nx = torch.zeros(1)\nx.grad = None\nself.module = torch\nregister = torch.compile"
    assert not changes_to_torch(ast.parse(text))
