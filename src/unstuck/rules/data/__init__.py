"""The data sets of a script, read as a whole and compared with each other."""
