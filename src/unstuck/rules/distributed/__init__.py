"""Rules about training on several devices or machines."""
