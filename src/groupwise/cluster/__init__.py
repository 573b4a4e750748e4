"""The processes of a run besides its own: starting them, watching them, and the cause of a death."""
