"""Which methods are named on a line of their own, but not called?"""

from __future__ import annotations

import ast
import re

from unstuck.lazy import pattern
from unstuck.source import Script

EFFECTS = {
    "backward": "no gradients are computed",
    "step": "nothing is updated",
    "zero_grad": "no gradients are cleared",
    "train": "the mode does not change",
    "eval": "the mode does not change",
}
"""Methods that are called for their effect, and what happens without the call."""
BARE = pattern(rf"\.(?:{'|'.join(EFFECTS)})[ \t]*(?:[#;].*)?$", re.M)
MODELS = pattern(r"(^|[._])(\w*model|\w*net|module|encoder|decoder|generator|discriminator|critic|actor|policy)$", re.I)
OWNERS = {
    "step": pattern(r"(^|[._])\w*(opt(im\w*)?|optimi[sz]er\w*|sched\w*|scaler)(_?\w{1,3})?$", re.I),
    "train": MODELS,
    "eval": MODELS,
}
"""What has such a method. Other objects may have an attribute of this name that does something when it is read."""


def named_only(script: Script, *methods: str) -> list[ast.Attribute]:
    """Statements such as `optimizer.step`, of these methods or of all."""
    if not BARE.search(script.text):
        return []
    statements = (node.value for node in ast.walk(script.tree) if isinstance(node, ast.Expr))
    named = [node for node in statements if isinstance(node, ast.Attribute) and node.attr in (methods or EFFECTS)]
    return [node for node in named if node.attr not in OWNERS or OWNERS[node.attr].search(ast.unparse(node.value))]
