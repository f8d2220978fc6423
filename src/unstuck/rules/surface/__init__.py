"""Problems with the shape of a loss by itself."""
