"""What weights are: as torch draws them at first, or as the last step left them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import nn

    from unstuck.capture.trial.lab import Arguments, Lab


class DefaultWeights(Intervention, frozen=True):
    """Before its first step, draw the weights of every layer again as torch does by default.

    Layers that are frozen or were loaded keep theirs, and so do parameters that belong to no layer of torch. What the
    script draws afterwards is the same as without it.
    """

    WORDS = "torch's default initial weights"

    def apply(self, lab: Lab) -> None:
        import torch

        done: set[int] = set()
        reset = 0
        lab.notes["reset"] = 0

        def draw_again(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            nonlocal reset
            if id(module) in done or lab.steps or not torch.is_grad_enabled():
                return args, kwargs
            done.add(id(module))
            devices = sorted({p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"})
            with torch.random.fork_rng(devices=devices), torch.no_grad():
                torch.manual_seed(torch.initial_seed() + 1)
                for part in module.modules():
                    own = list(part.parameters(recurse=False))
                    draws = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
                    is_torchs = type(part).__module__.startswith("torch.nn.")
                    if own and is_torchs and draws is not None and all(p.requires_grad for p in own):
                        draws()
                        reset += 1
            lab.notes["reset"] = reset
            return args, kwargs

        lab.change_calls(draw_again)


class KeepWeights(Intervention, frozen=True):
    """Before a model is called in training, put back the weights that the last step of its optimizer left, where
    something else has written them."""

    WORDS = "the weights kept as each step leaves them"

    def apply(self, lab: Lab) -> None:
        import torch

        left: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def keep(optimizer: torch.optim.Optimizer) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    known = left.get(id(parameter))
                    if known is not None and known[0] is parameter:
                        known[1].copy_(parameter.detach())
                    else:
                        left[id(parameter)] = parameter, parameter.detach().clone()

        def put_back(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            if torch.is_grad_enabled() and left:
                with torch.no_grad():
                    for parameter in module.parameters():
                        known = left.get(id(parameter))
                        if known is not None and known[0] is parameter and not torch.equal(known[1], parameter):
                            parameter.data.copy_(known[1])
            return args, kwargs

        lab.after_steps(keep)
        lab.change_calls(put_back)
