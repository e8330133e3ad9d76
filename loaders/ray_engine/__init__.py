"""The work of the loaders on other machines, with Ray (extra ``ray``). Nothing else imports ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loaders.ray_engine.engine import Engine


def open_engine(address: str | None) -> Engine:
    """The data plane on a cluster, for one rank.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: no cluster answers.
    """
    try:
        from loaders.ray_engine.engine import Engine
    except ImportError as error:
        raise ImportError(f'engine="ray" needs Ray ({error}): pip install "evenload[ray]".') from error
    return Engine(address)
