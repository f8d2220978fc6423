"""Turns dropout off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import nn

    from unstuck.capture.trial.lab import Arguments, Lab

FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
RATES = ("drop_prob", "dropout", "attention_dropout", "attn_dropout")
"""Attributes in which modules store the rate at which they drop."""


class NoDropout(Intervention, frozen=True):
    """Turn dropout off, in functions and in modules that store a rate of their own."""

    WORDS = "nothing dropped"

    def apply(self, lab: Lab) -> None:
        import torch.nn.functional as F

        for name in FUNCTIONS:
            lab.wrap(F, name, _without)
        lab.wrap(F, "scaled_dot_product_attention", _without_in_attention)
        done: set[int] = set()

        def clear_rates(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            if id(module) not in done:
                done.add(id(module))
                for part in module.modules():
                    for name in RATES:
                        if isinstance(getattr(part, name, None), float):
                            setattr(part, name, 0.0)
            return args, kwargs

        lab.change_calls(clear_rates)


def _without(original: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return original(input, 0.0, training, inplace)

    return dropout


def _without_in_attention(original: Callable[..., Any]) -> Callable[..., Any]:
    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **kwargs: Any) -> Any:
        kwargs.pop("dropout_p", None)
        return original(query, key, value, attn_mask, 0.0, *rest[1:], **kwargs)

    return attention
