"""What a loss is made of: rows that belong together, terms that count, likelihoods, agents."""
