"""Relations that must hold whatever the model is, tested inside a trial on the script's own batch."""
