"""The training recipe: data, initial loss, seeds and schedules."""
