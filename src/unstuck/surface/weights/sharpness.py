"""Sharp or flat: the largest eigenvalues of a loss's Hessian, by Lanczos' method on products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS = 30


def top_eigenvalues(
    model: nn.Module, loss_fn: Callable[..., Tensor], inputs: Any, targets: Any, count: int, steps: int = STEPS
) -> tuple[float, ...]:
    """The `count` largest eigenvalues at the model's weights, the largest first. The Hessian is never built."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    loss = loss_fn(model(*arguments), targets)
    gradients = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
    used = [(weight, slope) for weight, slope in zip(weights, gradients, strict=True) if slope is not None]

    def times_hessian(vector: Tensor) -> Tensor:
        parts = [torch.empty_like(weight) for weight, _ in used]
        vector_to_parameters(vector, parts)
        slopes = [slope for _, slope in used]
        products = torch.autograd.grad(slopes, [w for w, _ in used], parts, retain_graph=True, allow_unused=True)
        if all(product is None for product in products):
            raise RuntimeError("the gradient of the model cannot be differentiated again")
        pairs = zip(products, parts, strict=True)
        return parameters_to_vector([torch.zeros_like(part) if p is None else p for p, part in pairs])

    size = sum(weight.numel() for weight, _ in used)
    found = lanczos(times_hessian, size, min(max(steps, 3 * count), size), used[0][0])
    return tuple(float(value) for value in found[:count])


def lanczos(product: Callable[[Tensor], Tensor], size: int, steps: int, like: Tensor) -> Tensor:
    """Eigenvalues, falling, of the projection of a symmetric operator on the space its powers span."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(size, generator=generator).to(like)
    basis = [vector / vector.norm()]
    diagonal, beside = [], []
    for _ in range(steps):
        ahead = product(basis[-1]).detach()
        diagonal.append(ahead @ basis[-1])
        space = torch.stack(basis)
        # Twice, since in floating point one pass leaves the new vector askew and eigenvalues appear double.
        for _ in range(2):
            ahead = ahead - space.T @ (space @ ahead)
        length = ahead.norm()
        if len(diagonal) == steps or length <= 1e-6 * max(abs(float(d)) for d in diagonal):
            break
        beside.append(length)
        basis.append(ahead / length)
    small = torch.diag(torch.stack(diagonal).double())
    if beside:
        off = torch.stack(beside).double()
        small = small + torch.diag(off, 1) + torch.diag(off, -1)
    values: Tensor = torch.linalg.eigvalsh(small).flip(0)
    return values
