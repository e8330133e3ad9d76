"""The last step: shards get their final names, then the manifest says that all is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from loaders.packing_job import folder
from loaders.packing_job.atomic import sha256, told_about, whole_file, write_json
from loaders.packing_job.corpus import Corpus, packed
from loaders.packing_job.report import write_report
from loaders.packing_job.settings import PackSettings
from loaders.packing_job.window import shard_folder
from loaders.sources.flat import as_arrow

REJECTS = "rejects.jsonl"
REPORT = "report.html"
PLAN = "plan.arrow"


def publish(
    manifest: dict[str, Any], corpus: Corpus, settings: PackSettings, cap: int, work: Path
) -> dict[str, Any]:
    """Move the shards of one cap into the output folder; the manifest comes last."""
    target = folder.target_folder(settings, cap)
    waiting = shard_folder(work, cap)
    with told_about(target):
        target.mkdir(parents=True, exist_ok=True)
    side_files = [REPORT]
    if settings.format == "plan":
        write_plan(target / PLAN, corpus, settings, cap)
        path = target / PLAN
        manifest["files"] = {PLAN: {"size_bytes": path.stat().st_size, "sha256": sha256(path)}}
    elif settings.format == "megatron":
        from loaders.packing_job.megatron import join_shards

        manifest["files"] = join_shards(waiting, list(manifest["files"]), target)
    else:
        for name in manifest["files"]:
            if (waiting / name).exists():
                os.replace(waiting / name, target / name)
        if settings.format == "arrow":
            side_files += write_hugging_face_files(target, list(manifest["files"]))
    rejects = [reject for found in corpus.rejects for reject in found]
    if rejects:
        side_files.append(REJECTS)
        with whole_file(target / REJECTS) as partial:
            partial.write_text("".join(json.dumps(reject) + "\n" for reject in rejects))
    manifest["side_files"] = side_files
    write_report(target / REPORT, manifest)
    write_json(target / folder.MANIFEST, manifest)
    return manifest


def write_plan(path: Path, corpus: Corpus, settings: PackSettings, cap: int) -> None:
    """Packs as row numbers: a row a pack, of the rows of all inputs one after another."""
    packs = packed(corpus.lengths, corpus.reach, settings, cap, seed=settings.seed)
    number = np.int32 if corpus.lengths.size < 2**31 else np.int64
    bounds = packs.offsets
    step = 1 << 16
    with whole_file(path) as partial:
        schema = pa.schema(
            [
                ("sample_ids", pa.large_list(pa.from_numpy_dtype(number))),
                ("starts", pa.large_list(pa.int32())),
                ("lengths", pa.large_list(pa.int32())),
            ]
        )
        with pa.ipc.new_file(str(partial), schema) as writer:
            for first in range(0, len(packs), step):
                last = min(first + step, len(packs))
                items = slice(int(bounds[first]), int(bounds[last]))
                offsets = as_arrow(bounds[first : last + 1] - bounds[first])
                columns = [
                    packs.order[items].astype(number),
                    packs.starts[items].astype(np.int32),
                    packs.lengths[items].astype(np.int32),
                ]
                arrays = [pa.LargeListArray.from_arrays(offsets, as_arrow(values)) for values in columns]
                writer.write_batch(pa.record_batch(arrays, schema=schema))


def write_hugging_face_files(target: Path, shards: list[str]) -> list[str]:
    """``dataset_info.json`` and ``state.json``, so that `datasets.load_from_disk` opens the folder."""
    from datasets import Features
    from datasets.info import DatasetInfo

    with pa.OSFile(str(target / shards[0])) as file:
        schema = pa.ipc.open_stream(file).schema
    info = DatasetInfo(features=Features.from_arrow_schema(schema))
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in shards],
        "_fingerprint": sha256(target / shards[0])[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": "train",
    }
    with whole_file(target / "dataset_info.json") as partial, open(partial, "wb") as out:
        info._dump_info(out, pretty_print=True)
    write_json(target / "state.json", state)
    return ["dataset_info.json", "state.json"]
