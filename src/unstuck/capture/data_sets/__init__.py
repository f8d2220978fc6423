"""The data sets that a script builds: found while it runs, read through its own loaders, and compared."""
