"""What a call does: one file per kind of thing that is called."""
