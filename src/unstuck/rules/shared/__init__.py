"""Questions that several rules ask, named by the question."""
