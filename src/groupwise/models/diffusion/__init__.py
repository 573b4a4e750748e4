"""Pipelines of diffusers as flow policies: text to picture by a flow-matching transformer over latents."""
