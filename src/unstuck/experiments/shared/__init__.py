"""What several experiments share: starts and floors of a loss, one batch, sweeps of the learning rate."""
