"""The edits of a fix, made on text."""
