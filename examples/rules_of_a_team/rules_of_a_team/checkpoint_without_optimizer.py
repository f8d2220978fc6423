"""T01 checkpoint-without-optimizer: see the page next to this file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unstuck.events import Place
from unstuck.findings import Finding, Severity, Subject
from unstuck.rule import Rule
from unstuck.source import Script

rule = Rule(
    "T01",
    "checkpoint-without-optimizer",
    "a checkpoint to resume from lacks the state of the optimizer",
    Severity.WARNING,
)

CAUSE = "The resumed run starts with empty momentum and Adam moments, so its first updates are far too large or noisy."
PROGRESS = {"epoch", "step", "iteration", "global_step"}
"""Whoever saves one of these means to resume; weights alone are saved for inference."""


@rule.in_source
def seen_in_source(script: Script) -> Iterator[Finding]:
    """Every `torch.save` of a dict with the progress and only one `state_dict()`, in a script that trains."""
    if not script.training_loops:
        return
    for node in ast.walk(script.tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "torch.save" or not node.args:
            continue
        saved = node.args[0]
        if not isinstance(saved, ast.Dict):
            continue
        keys = {key.value for key in saved.keys if isinstance(key, ast.Constant)}
        states = [value for value in saved.values if ast.unparse(value).endswith(".state_dict()")]
        if keys & PROGRESS and len(states) == 1:
            yield rule.finding(
                f"The checkpoint holds {ast.unparse(states[0])} and the progress, but no state of the optimizer.",
                cause=CAUSE,
                fix='Add "optimizer": optimizer.state_dict() to the checkpoint, and load it when you resume.',
                subject=Subject("call", f"torch.save at {script.path}:{node.lineno}"),
                place=Place(script.path, node.lineno, node.col_offset + 1, node.end_lineno or 0),
            )
