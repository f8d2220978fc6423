"""What a loss asks of a model, read from its graph: are answers shown, tokens hidden, views paired?"""
