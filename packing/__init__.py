"""Lengths in, packs out. Pure: numpy and numba, nothing of torch."""
