"""Writes docs/losses.md and its pictures from examples/surface/losses.py: `python docs/make_losses.py`."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from unstuck import surface
from unstuck.findings import Severity
from unstuck.surface.load import load
from unstuck.surface.model import Surface
from unstuck.surface.pictures.chart import image

DOCS = Path(__file__).parent
EXAMPLES = "examples/surface/losses.py"
COLOURS = 80
"""In a picture's palette: enough for the bands and their soft edges, and a quarter of the bytes."""
WIDEST = 920

LOSSES = {
    "Cross-entropy": ("cross_entropy",),
    "Focal loss": ("focal",),
    "Hinge loss": ("hinge",),
    "Huber loss": ("huber",),
    "Log-cosh": ("log_cosh",),
    "InfoNCE": ("info_nce",),
    "Triplet loss": ("triplet", "collapsing_triplet"),
    "A barrier in product form": ("product_barrier",),
    "DPO": ("dpo",),
    "The gradient penalty of a Wasserstein critic": ("gradient_penalty",),
    "Dice loss": ("dice", "dice_without_object"),
    "KL divergence, with and without a guard": ("kl", "guarded_kl"),
}

INTRODUCTION = f"""\
# Twelve losses and their shapes

What a loss does to its inputs, without a model: colour is the loss, arrows point where descent goes, and their length
grows with the logarithm of the gradient; a dot is a gradient of zero. The verdicts are what `unstuck surface` finds.
All of it is made by `python docs/make_losses.py` from [{EXAMPLES}](../{EXAMPLES}).

For a page with a start to drag about:

```
unstuck surface {EXAMPLES}:focal --out focal.html
```

Where a run stood on your own loss: name it when you run, then look at it there. The axes cover what the loss was given,
the other inputs stay at their medians, and two marks show where training was early and late.

```
unstuck run --loss losses:my_loss train.py
unstuck surface losses.py:my_loss --around latest --out surface.html
```

`--loss` takes `MODULE:NAME`, `FILE.py:NAME` or the `NAME` of a function or class at the top level of the script, and
may be repeated. Of scores and class numbers, the axes are the score of the right class and the highest of the others.
Losses of torch need no `--loss`: `unstuck surface torch.nn.functional:cross_entropy --around latest` shows the margin
of the right class. `unstuck surface` imports the file of the loss, so a loss inside a script runs that script unless
it has a main guard.
"""


def main() -> None:
    """Write the page and its pictures."""
    (DOCS / "pictures").mkdir(exist_ok=True)
    (DOCS / "losses.md").write_text(page(draw=True), encoding="utf-8")


def page(draw: bool) -> str:
    """The text of the page; its pictures too, if they are to be drawn."""
    sections = [f"## {title}\n\n" + "\n".join(_part(name, draw) for name in names) for title, names in LOSSES.items()]
    return "\n".join([INTRODUCTION, *sections])


def _part(name: str, draw: bool) -> str:
    loss = load(f"{DOCS.parent / EXAMPLES}:{name}")
    seen = surface(loss)
    if draw:
        (DOCS / "pictures" / f"{name}.png").write_bytes(small(image([seen], "png")))
    return f"`{name}`: {_described(loss)}\n\n![{_alternative(seen)}](pictures/{name}.png)\n\n{verdict(seen)}\n"


def verdict(seen: Surface) -> str:
    """The most important thing that was found, and what to do where something is to be done."""
    lead = seen.findings[0]
    remedy = "" if lead.severity is Severity.ADVICE else f" {lead.fix.text}"
    return f"**{lead.code} {lead.name}** {lead.message}{remedy}"


def small(png: bytes) -> bytes:
    """The same picture with a palette, and no wider than a page shows."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    if picture.width > WIDEST:
        picture = picture.resize((WIDEST, round(picture.height * WIDEST / picture.width)))
    content = io.BytesIO()
    # An octree keeps rare colours, such as the band of the highest loss, that the usual median cut merges.
    picture.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(content, "png", optimize=True)
    return content.getvalue()


def _described(loss: Callable[..., Any]) -> str:
    return inspect.getdoc(loss) or ""


def _alternative(seen: Surface) -> str:
    kind = "Curve" if seen.dimensions == 1 else "Map"
    return f"{kind} of {seen.name} over {' and '.join(axis.name for axis in seen.axes)}"


if __name__ == "__main__":
    main()
