"""Trainings with actions or opponents: what a loss asks of a policy, of a value, and of the other player."""
