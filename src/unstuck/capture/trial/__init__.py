"""One run of a program under interventions, in a process that cannot write to the user's files."""
