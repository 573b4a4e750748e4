"""Certificates: a published method with the results of its proofs, as JSON and as a page."""
