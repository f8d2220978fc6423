"""Gives an optimizer the parameters that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from unstuck.interventions.base import Intervention

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from unstuck.capture.trial.lab import Lab


class AddParameters(Intervention, frozen=True):
    """At its first step, give an optimizer what the loss depends on and no optimizer has; also parameters that no
    module registered."""

    WORDS = "the missing parameters given to the optimizer"

    def apply(self, lab: Lab) -> None:
        from torch import Tensor
        from torch.optim import Optimizer

        leaves: dict[int, Tensor] = {}
        optimized: set[int] = set()
        done: set[int] = set()

        def adding(original: Callable[..., Any]) -> Callable[..., Any]:
            def add_param_group(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
                original(optimizer, *args, **kwargs)
                optimized.update(id(p) for p in optimizer.param_groups[-1]["params"])

            return add_param_group

        def computing(original: Callable[..., Any]) -> Callable[..., Any]:
            def backward(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
                if not done and loss.grad_fn is not None:
                    leaves.update({id(leaf): leaf for leaf in _leaves(loss.grad_fn)})
                return original(loss, *args, **kwargs)

            return backward

        def add_missing(optimizer: Optimizer) -> None:
            if id(optimizer) in done:
                return
            done.add(id(optimizer))
            optimized.update(id(p) for group in optimizer.param_groups for p in group["params"])
            missing = [leaf for key, leaf in leaves.items() if key not in optimized and leaf.grad is not None]
            # Not as a new group: schedulers know how many there are.
            optimizer.param_groups[-1]["params"] += missing
            optimized.update(id(leaf) for leaf in missing)

        lab.wrap(Optimizer, "add_param_group", adding)
        lab.wrap(Tensor, "backward", computing)
        lab.before_steps(add_missing)


def _leaves(root: Any) -> Iterator[Tensor]:
    """The parameters that a graph ends in."""
    from torch import nn

    seen, todo = {root}, [root]
    while todo:
        node = todo.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter):
            yield leaf
        todo += [following for following, _ in node.next_functions if following is not None and following not in seen]
        seen.update(todo)
