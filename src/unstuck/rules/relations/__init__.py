"""Relations that must hold whatever the model is: between a network and its copy, an input and its target."""
