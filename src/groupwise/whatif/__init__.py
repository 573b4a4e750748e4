"""What if: the methods' rewards, advantages and gradients on the stored samples of an iteration."""
