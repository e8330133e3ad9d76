"""Predicted seconds of a micro-batch; `balancer.cost` re-exports what users need."""
