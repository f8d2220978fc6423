"""What the shape of a loss shows: kinks, stationary points, regions without a gradient."""
