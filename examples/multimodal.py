"""Text with pictures and sound, balanced over ranks: `python examples/multimodal.py`.

Makes a small data set of its own, plays all ranks in one process, and prints what each of them encodes and
reads. Needs the extras `vision` and `audio`.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from balancer import CostModel, Topology
from balancer.phases import Phase
from loaders import DataLoader, MultimodalSource, open_source
from loaders.media import MediaKind, MediaRules, PatchGrid, TokensPerSecond

IMAGE, AUDIO, START, END = 151655, 151646, 151652, 151653
"""Placeholder tokens, numbered as Qwen2-VL and Qwen2-Audio number theirs."""


def picture(draw: np.random.Generator) -> dict[str, object]:
    """A PNG of a random size, as `datasets` stores it."""
    from PIL import Image

    width, height = np.exp(draw.normal(5.5, 0.6, 2)).clip(60, 1500).astype(int).tolist()
    file = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).convert("RGB").save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def speech(draw: np.random.Generator) -> bytes:
    """A WAV of 1 to 20 seconds."""
    import soundfile

    seconds = float(draw.uniform(1, 20))
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(int(8000 * seconds)) * 0.3), 8000, format="WAV")
    return file.getvalue()


def make_data(path: Path, rows: int, seed: int = 0) -> None:
    """Samples of which half have one to three pictures, and every eighth has sound."""
    draw = np.random.default_rng(seed)
    ids, images, audio = [], [], []
    for _ in range(rows):
        words = draw.integers(1000, 50_000, int(draw.lognormal(4.5, 0.8))).tolist()
        pictures = [picture(draw) for _ in range(draw.integers(1, 4))] if draw.random() < 0.5 else []
        sound = speech(draw) if draw.random() < 0.125 else None
        ids.append(words + [START, IMAGE, END] * len(pictures) + ([AUDIO] if sound else []) + words[:20])
        images.append(pictures)
        audio.append(sound)
    pq.write_table(pa.table({"input_ids": ids, "images": images, "audio": audio}), path)


def rules() -> MediaRules:
    """Qwen2-VL's patches, 25 tokens a second of sound, positions on three axes."""
    return MediaRules(
        image=MediaKind(
            column="images", token=IMAGE, rule=PatchGrid(max_pixels=28 * 28 * 512), wrap=(START, END)
        ),
        audio=MediaKind(column="audio", token=AUDIO, rule=TokensPerSecond(rate=25, max_s=30)),
        positions="text+mrope",
        on_bad="skip",
    )


def loader_of(source: MultimodalSource, rank: int, ranks: int, *, encoders: bool) -> DataLoader:
    """The loader of one rank, whose plan knows the encoders' work or not."""
    vision = Phase(cost=CostModel(linear=1.2e-5, quadratic=0.0, fixed=0.002))
    audio = Phase(cost=CostModel(linear=4e-6, quadratic=0.0, fixed=0.001))
    return DataLoader(
        source,
        batch_size=8,
        shuffle=True,
        seed=0,
        max_tokens=8192,
        cost=CostModel(linear=3e-5, quadratic=1e-9, fixed=0.005),
        topology=Topology(ranks=ranks),
        rank=rank,
        phases={"vision": vision, "audio": audio} if encoders else None,
        fill_media=True,
    )


def shapes(loaders: list[DataLoader], console: Console) -> None:
    """What each rank gets in the first step."""
    table = Table(title="first step")
    for name in ("rank", "samples", "input_ids", "position_ids", "pixel_values", "audio_features"):
        table.add_column(name, justify="right")
    for rank, loader in enumerate(loaders):
        for batch in loader:
            held = [str(list(batch[key].shape)) if key in batch else "-" for key in table_keys()]
            table.add_row(str(rank), str(len(batch.sample_ids)), *held)
            if batch.last_in_step:
                break
    console.print(table)


def table_keys() -> tuple[str, ...]:
    """Inputs that the table shows."""
    return "input_ids", "position_ids", "pixel_values", "audio_features"


def main() -> None:
    """Compare plans that know the encoders with plans that count tokens alone."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=160)
    arguments.add_argument("--ranks", type=int, default=4)
    chosen = arguments.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "album.parquet"
        make_data(path, chosen.rows)
        inner = open_source(str(path), carry=["images", "audio"], name="album.parquet")
        source = MultimodalSource(inner, rules())
        ranks = range(chosen.ranks)
        shapes([loader_of(source, rank, chosen.ranks, encoders=True) for rank in ranks], console)
        table = Table(title="largest rank / mean, over an epoch")
        for name in ("plan knows", "language", "audio", "vision"):
            table.add_column(name, justify="right")
        for encoders in (False, True):
            loader = loader_of(source, 0, chosen.ranks, encoders=encoders)
            for _ in loader:
                pass
            told = loader.metrics()
            phases = [f"{imbalance:.2f}" for imbalance in told["phase_imbalance"].values()]
            table.add_row("tokens, encoders" if encoders else "tokens", f"{told['imbalance']:.2f}", *phases)
        console.print(table)


if __name__ == "__main__":
    main()
