"""Small things a right training script needs, each a function of its own.

Parameters: decay_groups, layerwise_lr, freeze, GradualUnfreezing.
Initialisation: init_final_bias, init_weights, suggest_init.
Targets and losses: pos_weight, remap_labels, masked_mean, per_token_loss.
Numerics: safe_log, safe_sqrt, safe_divide, safe_exp, safe_pow, safe_norm, safe_acos, log_space.
"""

from unstuck.helpers.freezing import Frozen, GradualUnfreezing, freeze
from unstuck.helpers.groups import decay_groups, layerwise_lr
from unstuck.helpers.initial import Suggestion, init_final_bias, init_weights, suggest_init
from unstuck.helpers.numerics import (
    log_space,
    safe_acos,
    safe_divide,
    safe_exp,
    safe_log,
    safe_norm,
    safe_pow,
    safe_sqrt,
)
from unstuck.helpers.targets import LabelMap, masked_mean, per_token_loss, pos_weight, remap_labels

__all__ = [
    "Frozen",
    "GradualUnfreezing",
    "LabelMap",
    "Suggestion",
    "decay_groups",
    "freeze",
    "init_final_bias",
    "init_weights",
    "layerwise_lr",
    "log_space",
    "masked_mean",
    "per_token_loss",
    "pos_weight",
    "remap_labels",
    "safe_acos",
    "safe_divide",
    "safe_exp",
    "safe_log",
    "safe_norm",
    "safe_pow",
    "safe_sqrt",
    "suggest_init",
]
