"""What a run will need, computed from its recipe and the model's shape before anything is loaded."""
