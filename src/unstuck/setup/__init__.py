"""Live objects read once, before training."""

from unstuck.setup.probe import probe

__all__ = ["probe"]
