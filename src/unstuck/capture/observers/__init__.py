"""One observer per thing that happens in a loop: forward, loss, backward, step, schedule, data."""
