"""Parts known to work in place of those of a program: its data, its model, its loss, its update."""
