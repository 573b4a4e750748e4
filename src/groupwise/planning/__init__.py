"""What a run will need, such as memory, computed from its recipe and the model's sizes before anything is loaded."""
