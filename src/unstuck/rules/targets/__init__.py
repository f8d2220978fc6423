"""Runs that learn, but something else than was meant: the answer is shown, hidden or asked of the wrong partner."""
