"""Not valid Python: it is reported, and the others are still looked at."""

for batch in loader
    pass
