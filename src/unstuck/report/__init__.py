"""Results in, text out: one file per format, all reading the same `Result`."""
