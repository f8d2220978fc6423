"""What the reader of a script knows about torch: which names are layers, losses, optimizers and operations."""

from __future__ import annotations

from collections.abc import Iterator

from unstuck.source.values import Const, Instance, Symbol, UserClass, Value, alternatives, lineage, members

LOSSES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "KLDivLoss": "kl_div",
}
"""Loss modules of torch.nn and the functions they call."""

LOSS_FUNCTIONS = frozenset(LOSSES.values())

LAYERS_WITH_WEIGHTS = frozenset(
    "Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LazyLinear LazyConv1d "
    "LazyConv2d LazyConv3d BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm LayerNorm GroupNorm RMSNorm "
    "Embedding EmbeddingBag RNN LSTM GRU RNNCell LSTMCell GRUCell MultiheadAttention Transformer "
    "TransformerEncoder TransformerDecoder TransformerEncoderLayer TransformerDecoderLayer PReLU".split()
)

NORMS = frozenset(
    "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm LayerNorm GroupNorm RMSNorm InstanceNorm1d InstanceNorm2d "
    "InstanceNorm3d".split()
)

CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})

OPTIMIZERS = frozenset(
    "SGD Adam AdamW Adamax NAdam RAdam Adagrad Adadelta RMSprop Rprop ASGD LBFGS SparseAdam Adafactor Lion Lamb "
    "LAMB AdaBelief RAdamW Muon SophiaG".split()
)

SAME_VALUES = frozenset(
    "view reshape flatten squeeze unsqueeze transpose permute contiguous float double half bfloat16 to cuda cpu "
    "type clone getitem t type_as view_as reshape_as expand movedim swapaxes rearrange unflatten mT T "
    "requires_grad_".split()
)
"""Operations that move, reshape or cast values without computing new ones."""

CUTS = {
    "item": ".item()",
    "detach": ".detach()",
    "detach_": ".detach_()",
    "numpy": ".numpy()",
    "tolist": ".tolist()",
    "argmax": "argmax",
    "argmin": "argmin",
    "eq": "a comparison",
    "ne": "a comparison",
    "int": ".int()",
    "long": ".long()",
    "bool": ".bool()",
    "nonzero": "nonzero",
    "data": ".data",
}
"""Methods, functions and attributes that stop the gradient, and how a sentence names them."""

REBUILDERS = frozenset({"tensor", "as_tensor", "from_numpy", "FloatTensor", "Tensor", "asarray"})
"""Functions of torch that make a new tensor out of numbers."""

NUMPY_ASKS_THE_TENSOR = frozenset(
    "squeeze reshape transpose swapaxes ravel sum mean prod std var max min amax amin clip round cumsum repeat take "
    "diagonal argmax argmin argsort sort nonzero".split()
)
"""Functions of NumPy that call the method of the same name: from a tensor they return a tensor with its history."""

HARMLESS_CALLS = frozenset(
    "print len isinstance hasattr getattr str repr type id range enumerate zip reversed sorted min max abs round "
    "iter next filter format vars dir callable issubclass super list tuple set dict any all open input int float bool "
    "complex bytes hash ord chr divmod pow sum".split()
)
"""Builtins that never step, zero or back-propagate their arguments."""

HARMLESS_METHODS = (
    SAME_VALUES
    | CUTS.keys()
    | frozenset(
        "abs add sub mul div matmul mm bmm dot pow exp log log1p log2 sqrt rsqrt square sin cos tanh sigmoid softmax "
        "log_softmax relu neg sign round floor ceil clamp clip minimum maximum sum mean std var norm prod max min "
        "amax amin sort topk cumsum cumprod all any isnan isinf isfinite gt lt ge le where masked_fill masked_select "
        "gather scatter scatter_add index_select index_add index_copy repeat repeat_interleave roll flip split chunk "
        "unbind narrow select size dim numel nelement stride element_size is_contiguous outer einsum tril triu diag "
        "diagonal cat stack unfold new_zeros new_ones new_full new_empty new_tensor get_device is_floating_point "
        "retain_grad parameters named_parameters modules named_modules children named_children buffers named_buffers "
        "state_dict requires_grad_ __init__ copy startswith endswith lower upper strip split replace join "
        "format".split()
    )
)
"""Methods of tensors, modules and texts that leave what they belong to as it is."""

LARGEST_LIMIT = 1e6
"""Clipping above this only measures the norm."""

MODULE_BASES = frozenset({"Module", "LightningModule", "PreTrainedModel"})

FRAMEWORKS = frozenset({"Accelerator", "Fabric"})
"""Objects that take over backward and clipping but leave the loop to the user."""


def is_optimizer(value: Value) -> bool:
    """Is `value` certainly an optimizer?"""
    if not isinstance(value, Instance) or is_scheduler(value):
        return False
    if value.cls is not None:
        return _derives_from(value.cls, "torch.optim.")
    return (value.kind.startswith("torch.optim.") and "swa_utils" not in value.kind) or value.last in OPTIMIZERS


def is_scheduler(value: Value) -> bool:
    """Is `value` certainly a learning-rate scheduler?"""
    if not isinstance(value, Instance):
        return False
    if value.cls is not None:
        return _derives_from(value.cls, "torch.optim.lr_scheduler.")
    known = value.kind.startswith("torch.optim.lr_scheduler.") or value.last.endswith("LR")
    return known or is_schedule_function(value.last)


def is_schedule_function(name: str) -> bool:
    """Is it one of the functions of transformers that build a scheduler, such as get_linear_schedule_with_warmup?"""
    return name.startswith("get_") and "schedule" in name and name != "get_scheduler"


def _derives_from(cls: UserClass, prefix: str) -> bool:
    return any(isinstance(base, Symbol) and base.name.startswith(prefix) for base in cls.bases)


def is_scaler(value: Value) -> bool:
    """Is `value` certainly a GradScaler?"""
    return isinstance(value, Instance) and value.last == "GradScaler"


def is_module_class(cls: UserClass) -> bool:
    """Does the class certainly derive from nn.Module?"""
    return any(
        isinstance(base, Symbol) and (base.name.startswith("torch.nn.") or base.last in MODULE_BASES)
        for base in lineage(cls)
    )


def is_lightning(value: Value | None) -> bool:
    """Is it certainly an object of a class derived from LightningModule?"""
    bases = lineage(value.cls) if isinstance(value, Instance) and value.cls is not None else ()
    return any(isinstance(base, Symbol) and base.last == "LightningModule" for base in bases)


def is_module(value: Value) -> bool:
    """Is `value` certainly a module (not a loss, not an optimizer)?"""
    if not isinstance(value, Instance):
        return False
    if value.cls is not None:
        return is_module_class(value.cls)
    if value.kind == "torch.nn.Parameter":
        return False
    return value.is_part or value.kind.startswith(("torch.nn.", "torchvision.models."))


def has_weights(value: Value) -> bool:
    """Does the module or one of its children certainly have parameters?"""
    return any(_is_weight(part) for part in parts(value))


def parts(value: Value) -> Iterator[Instance]:
    """The module and its known children at any depth, each once."""
    waiting, seen = [value], {id(value)}
    while waiting:
        module = waiting.pop()
        if not isinstance(module, Instance):
            continue
        yield module
        children = [*module.attrs.values(), *module.items] if is_module(module) else []
        options = [option for child in children for option in alternatives(child) if id(option) not in seen]
        seen.update(map(id, options))
        waiting += options


def _is_weight(module: Instance) -> bool:
    if module.kind == "torch.nn.Parameter":
        return module.kwargs.get("requires_grad") != Const(False)
    if module.kind.startswith("torchvision.models."):
        return True
    plain = Const(False) in (module.kwargs.get("affine"), module.kwargs.get("elementwise_affine"))
    return module.cls is None and module.last in LAYERS_WITH_WEIGHTS and not plain


def contains_weights(group: Value) -> bool:
    """Does a plain list or dict contain modules with weights?"""
    return any(has_weights(option) for option in members(group))
