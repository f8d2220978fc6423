"""What is wrong with the way lint itself is used."""
