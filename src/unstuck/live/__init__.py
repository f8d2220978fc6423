"""A run judged while it goes on: findings announced at once, a hopeless run ended early, and `unstuck.watch`."""
