"""Weights that something other than an optimizer writes: updates by hand, and weights that are set back."""
