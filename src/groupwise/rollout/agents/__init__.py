"""Agents: episodes made of chat requests, and the endpoint that answers them."""
