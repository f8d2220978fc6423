"""Batch norms that answer by statistics which no batch has ever changed, though their weights are no longer new."""

from __future__ import annotations

from torch import nn

from unstuck.capture.measure.tensors import is_plain, reading

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def untouched(model: nn.Module) -> tuple[list[str], int]:
    """The names of such layers in evaluation mode, and how many batch norms keep statistics at all."""
    found, kept = [], 0
    with reading():
        for name, layer in model.named_modules():
            if not isinstance(layer, BATCH_NORMS) or layer.running_mean is None or layer.running_var is None:
                continue
            kept += 1
            if layer.training or layer.weight is None or not is_plain(layer.weight) or not layer.weight.is_cpu:
                continue
            new = bool((layer.running_mean == 0).all()) and bool((layer.running_var == 1).all())
            if new and not bool((layer.weight == 1).all()):
                found.append(name)
    return found, kept
