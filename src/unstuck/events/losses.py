"""The losses of torch by what they compare, as `LossCall.loss` names them."""

from __future__ import annotations

CLASS_LOSSES = ("cross_entropy", "nll_loss")
"""Scores of classes with class ids."""
BINARY_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
"""Numbers with yes or no."""
VALUE_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
"""Numbers with numbers."""
