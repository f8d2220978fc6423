"""Follows the examples of a batch from operation to operation, to where they are mixed up."""
