"""Gradients that are wrong, lost or out of range."""
