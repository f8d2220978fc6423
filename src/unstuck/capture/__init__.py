"""The only code that touches a running program. Importing it does not import torch."""

from unstuck.capture.launch.launcher import LaunchError, launch
from unstuck.capture.session import Listener, RunStopped, Session, TorchMissing, watching

__all__ = ["LaunchError", "Listener", "RunStopped", "Session", "TorchMissing", "launch", "watching"]
