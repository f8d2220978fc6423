"""One file per verb of the `unstuck` command."""
