"""The `evenload` command."""


def main() -> None:
    """Run the command."""
