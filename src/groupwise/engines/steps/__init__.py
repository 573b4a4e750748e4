"""Engines of steps: denoising by a flow policy, unmasking by a masked policy."""
