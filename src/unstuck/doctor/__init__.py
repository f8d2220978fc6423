"""Quick versions of the promises, tried on the user's own machine (`unstuck doctor`)."""
