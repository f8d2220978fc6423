"""The data a model received, its filters and its predictions, for a person to look at."""
