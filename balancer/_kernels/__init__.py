"""Bare single-threaded loops of the balancer. Integers only, so that every platform gives the same bits."""
