"""Lengths in, packs out. Pure: numpy and numba, nothing of torch."""

from packing.packer import pack
from packing.packs import Packs
from packing.strategies import STRATEGIES
from packing.stream import ClosedPacks, StreamPacker
from packing.table import SampleTable

__all__ = ["STRATEGIES", "ClosedPacks", "Packs", "SampleTable", "StreamPacker", "pack"]
