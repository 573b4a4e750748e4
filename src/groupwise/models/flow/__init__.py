"""Flow-matching policies: velocity fields, the noise of their denoising steps, and numbers per step."""
