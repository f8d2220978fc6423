"""Searches for trouble while a run goes on: the first NaN, stale gradients, retained graphs, frozen weights."""
