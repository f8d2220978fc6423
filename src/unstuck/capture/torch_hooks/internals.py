"""The private names of torch that we use, each with what we do where a torch does not have it.

Any of them may be gone in the next release. Where a name tells whether the program would notice us, we then take the
careful answer: something is left out of the record, and nothing happens to the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.utils.data
from torch import Tensor, nn

_missing: dict[str, list[str]] = {}
"""By what that costs: the names that this torch does not have."""


def left_out() -> list[str]:
    """What is left out because this torch lacks a name, one sentence each."""
    return [f"torch {torch.__version__} has no {', '.join(names)}, so {cost}" for cost, names in _missing.items()]


def _named(path: str, otherwise: Any, cost: str = "") -> Any:
    """What torch calls so, or `otherwise`; `cost` says what that leaves out, if anything."""
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    if found is None:
        if cost:
            _missing.setdefault(cost, []).append(f"torch.{path}")
        return otherwise
    return found


_UNMEASURED = "tensors are not measured"


class _FunctionModesStay:
    """Stands for the context in which modes and subclasses of the user's are not called."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


dispatch_modes: Callable[[], int] = _named("_C._len_torch_dispatch_stack", lambda: 1, _UNMEASURED)
tracing_state: Callable[[], object] = _named("_C._get_tracing_state", lambda: "unknown", _UNMEASURED)
transforms: Callable[[], object] = _named("_C._functorch.peek_interpreter_stack", lambda: "unknown", _UNMEASURED)
function_modes: Callable[[], int] = _named("_C._len_torch_function_stack", lambda: 1)
without_function_modes: Callable[[], Any] = _named("_C.DisableTorchFunction", _FunctionModesStay, _UNMEASURED)
can_hide: bool = without_function_modes is not _FunctionModesStay
set_grad_enabled: Callable[[bool], object] = _named("_C._set_grad_enabled", torch.set_grad_enabled)
has_cuda: Callable[[], bool] = (
    partial(getattr, torch.cuda, "_initialized") if hasattr(torch.cuda, "_initialized") else torch.cuda.is_initialized
)
"""Is CUDA in use? Asking must not start it. Asked many times a step: a lambda would be one more frame each time."""


def _norm_of_each(tensors: Sequence[Tensor], order: float, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [torch.linalg.vector_norm(tensor, order, dtype=dtype) for tensor in tensors]


def _copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


foreach_norm: Callable[..., list[Tensor]] = _named("_foreach_norm", _norm_of_each)
foreach_copy: Callable[..., object] = _named("_foreach_copy_", _copy_each)

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
BatchNorm: Any = _named("nn.modules.batchnorm._BatchNorm", _BATCH_NORMS)
"""For `isinstance`: layers that normalise over the examples of a batch."""
NormBase: Any = _named("nn.modules.batchnorm._NormBase", (*_BATCH_NORMS, *_INSTANCE_NORMS))
"""For `isinstance`: layers that may keep running statistics."""
SavedTensor: Any = _named("_C._autograd.SavedTensor", (), "what autograd keeps is not looked at")
"""For `isinstance`: what a node of the graph keeps for the backward."""
has_shapes: bool = _named("autograd.graph.Node._input_metadata", None) is not None
"""Does a node of the graph know the shape of what it returned? Not in torch 2.4."""
LoaderIterator: type | None = _named(
    "utils.data.dataloader._BaseDataLoaderIter", None, "the batches of a DataLoader are not looked at"
)
"""What iterates over a DataLoader."""

function_transforms: Any = _named("_functorch.eager_transforms", None)
"""The module that holds `grad_and_value_impl`, behind `torch.func.grad` and `torch.func.grad_and_value`."""


def _no_compiler(callback: object) -> None:
    return None


_COMPILED = "torch.compile may compile what watches your code along with it"
_eval_frame: Any = _named("_C._dynamo.eval_frame", None)
set_compiler: Callable[[Any], Any] = _named("_C._dynamo.eval_frame.set_eval_frame", _no_compiler, _COMPILED)
"""Puts another compiler, or none, in charge of the frames to come, and returns the one before."""


def _skipping() -> Callable[[Any], object] | None:
    """How to have the compiler pass over a piece of code."""
    if hasattr(_eval_frame, "skip_code"):  # an older torch
        skip: Callable[[Any], object] = _eval_frame.skip_code
        return skip
    try:
        action = _eval_frame._FrameAction
        strategy = _eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        set_strategy = _eval_frame.set_code_exec_strategy
    except (AttributeError, TypeError):
        _missing.setdefault(_COMPILED, []).append("torch._C._dynamo.eval_frame.set_code_exec_strategy")
        return None
    return lambda code: set_strategy(code, strategy)


_skip = _skipping()


def leave_uncompiled(function: Any) -> None:
    """Where compiled code of the user's leads into this one, it is run as it is; what it calls may be compiled."""
    if _skip is not None:
        _skip(function.__code__)
