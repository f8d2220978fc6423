"""What the development commands share."""


class Refusal(Exception):
    """Ends the command with one sentence on stderr."""
