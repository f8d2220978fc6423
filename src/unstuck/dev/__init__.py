"""Commands for people who work on unstuck itself: `python -m unstuck.dev`."""
