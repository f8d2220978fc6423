"""Source files as they are on disk: scripts, notebooks, comments, encodings."""
