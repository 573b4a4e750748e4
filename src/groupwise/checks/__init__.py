"""What `check` tests before a run: recipe, data, model, method and machine."""
