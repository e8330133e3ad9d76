"""From a plan's share to what a model takes: read, cut, joined, laid end to end."""
