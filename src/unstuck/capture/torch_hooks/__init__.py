"""The only code that changes torch: patches, hooks and private names, all undone at the end."""
