"""What a label says besides a token id."""

IGNORED = -100
"""Label of a token that takes no part in the loss, as torch and transformers have it."""
