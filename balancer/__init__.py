"""Lengths, cost and topology in, step plans out. Pure except `balancer.runtime`."""
