"""Rules that this team adds to unstuck."""
