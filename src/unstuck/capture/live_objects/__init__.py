"""Live objects as a user passes them: how they are called, passes over them, and putting them back as they were."""
