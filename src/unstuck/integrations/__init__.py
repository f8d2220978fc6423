"""Where teams live: other tools that show what we find. Each is small, and loaded by the tool that wants it."""
