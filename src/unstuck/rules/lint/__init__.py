"""Problems with ignore comments."""
