"""What a traceback shows: the failing call, what it was given, and what the user's line calls it."""
