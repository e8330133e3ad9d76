"""``python -m loaders.cli``: the command where it is not on the path."""

from loaders.cli import main

main()
