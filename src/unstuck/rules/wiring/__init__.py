"""Rules about how the parts are put together."""
