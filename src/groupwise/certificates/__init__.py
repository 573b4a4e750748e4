"""Certificates: a published method with the results of the tests that verify it, as JSON and as a page."""
