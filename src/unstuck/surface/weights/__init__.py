"""A model's loss along directions in the space of its weights."""
