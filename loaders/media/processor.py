"""Asking a Hugging Face processor how many tokens a picture becomes, and letting it make the features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaders.media.errors import MediaError
from loaders.media.rules import Counts

Ints = NDArray[np.int64]


class ProcessorRule:
    """A picture rule that asks ``processor`` (a ``transformers`` one with an ``image_processor``).

    Counting uses the processor's own ``_get_num_multimodal_tokens``, which looks at sizes alone
    (transformers 4.53 and later). Decoding calls its ``image_processor`` on one picture. Each size is
    asked for once. Of the features those named in ``keys`` are kept, joined along their first axis.

    Raises:
        ValueError: the processor cannot count from sizes.
    """

    def __init__(self, processor: Any, *, keys: tuple[str, ...] = ("pixel_values", "image_grid_thw")) -> None:
        if not hasattr(processor, "_get_num_multimodal_tokens"):
            raise ValueError(
                f"{type(processor).__name__} cannot count tokens from picture sizes: it lacks "
                "_get_num_multimodal_tokens (transformers 4.53 or later). Use PatchGrid, Tiles or FixedImage."
            )
        self.processor = processor
        self.keys = tuple(keys)
        self._known: dict[tuple[int, int], tuple[int, int]] = {}

    def count(self, width: Ints, height: Ints) -> Counts:
        """[I] tokens and patches, as the processor says. The grid holds height and width, for decoding to
        check.
        """
        sizes = list(zip(height.tolist(), width.tolist(), strict=True))
        unknown = sorted(set(sizes) - set(self._known))
        if unknown:
            found = self.processor._get_num_multimodal_tokens(image_sizes=[list(size) for size in unknown])
            tokens, patches = found["num_image_tokens"], found["num_image_patches"]
            for size, own_tokens, own_patches in zip(unknown, tokens, patches, strict=True):
                self._known[size] = int(own_tokens), int(own_patches)
        counts = np.array([self._known[size] for size in sizes], np.int64).reshape(-1, 2)
        grid = np.stack([np.ones(width.size, np.int64), height, width], axis=1)
        return Counts(
            tokens=counts[:, 0], units=counts[:, 1], grid=grid, clipped=np.zeros(width.size, np.bool_)
        )

    def decode(self, image: Any, grid: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Features of one RGB picture, first resized where it is not as large as planned."""
        from loaders.media.images import resized

        _, height, width = (int(part) for part in grid)
        made = self.processor.image_processor(images=[resized(image, width, height)], return_tensors="np")
        missing = [key for key in self.keys if key not in made]
        if missing:
            raise MediaError(f"the processor gave {', '.join(made)}, not {', '.join(missing)}")
        return {key: np.asarray(made[key]) for key in self.keys}
