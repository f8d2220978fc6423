"""What the data that a model received show, in sentences."""
