"""Readers of what samples lie in."""
