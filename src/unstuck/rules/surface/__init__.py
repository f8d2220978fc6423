"""What is wrong with the shape of a loss on its own."""
