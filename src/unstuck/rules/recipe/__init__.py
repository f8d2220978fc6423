"""The recipe: what to check before, and how to go on."""
