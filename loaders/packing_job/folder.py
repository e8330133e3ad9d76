"""The output folder: who may write to it, what is finished, and what an interrupted run left."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loaders.packing_job.atomic import read_json, told_about, write_json
from loaders.packing_job.settings import PackSettings

WORK = ".evenload-pack"
MANIFEST = "manifest.json"


def work_folder(output: Path) -> Path:
    """Where everything is kept that is not finished."""
    return output / WORK


@contextmanager
def claimed(settings: PackSettings, stamps: list[str], *, resume: bool, overwrite: bool) -> Iterator[Path]:
    """The work folder, held against other runs.

    Raises:
        FileExistsError: the folder holds something, and neither ``resume`` nor ``overwrite`` says what to do;
            or it is no folder.
        ValueError: ``resume`` with other settings or changed inputs than the run that was interrupted.
        RuntimeError: another run is at work there.
    """
    output = Path(settings.output)
    work = work_folder(output)
    file = next((path for path in (output, *output.parents) if path.exists() and not path.is_dir()), None)
    if file is not None:
        raise FileExistsError(f"{output}: {file} is a file, no folder. Choose another -o.")
    with told_about(output):
        output.mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
    with open(work / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"{output}: another run is writing here. Wait for it or choose another -o."
            ) from None
        _prepare(output, work, settings, stamps, resume=resume, overwrite=overwrite)
        yield work


def _prepare(
    output: Path, work: Path, settings: PackSettings, stamps: list[str], *, resume: bool, overwrite: bool
) -> None:
    job_file = work / "job.json"
    before = read_json(job_file)
    finished = [path for path in output.iterdir() if path.name != WORK]
    if overwrite:
        _remove_run(output, work)
        finished = [path for path in output.iterdir() if path.name != WORK]
        before = None
    if finished and before is None:
        _leave(work)
        kept = ", ".join(sorted(path.name for path in finished)[:3])
        way_out = "--overwrite replaces it" if (output / MANIFEST).exists() else "choose an empty folder"
        raise FileExistsError(f"{output} is not empty ({kept}); {way_out}.")
    if before is not None:
        if not resume:
            raise FileExistsError(
                f"{output} holds a run that was not finished. --resume goes on, --overwrite starts again."
            )
        changed = settings.differences(before["settings"])
        if changed:
            raise ValueError(f"{output}: cannot resume with other settings: {'; '.join(changed)}.")
        if before["stamps"] != stamps:
            old, new = set(before["stamps"]), set(stamps)
            files = sorted({stamp.rsplit(":", 2)[0] for stamp in old ^ new})
            raise ValueError(
                f"{output}: cannot resume, inputs changed since: {', '.join(files[:3])}. Use --overwrite."
            )
    write_json(job_file, {"settings": settings.as_dict(), "stamps": stamps})


def _remove_run(output: Path, work: Path) -> None:
    """Delete what a run wrote: the files its manifest names, and the work folder's content."""
    for manifest_path in [output / MANIFEST, *output.glob(f"*/{MANIFEST}")]:
        manifest = read_json(manifest_path)
        if manifest is None or "evenload" not in manifest:
            continue
        for name in [*manifest["files"], *manifest.get("side_files", [])]:
            (manifest_path.parent / name).unlink(missing_ok=True)
        manifest_path.unlink()
        if manifest_path.parent != output and not any(manifest_path.parent.iterdir()):
            manifest_path.parent.rmdir()
    for path in work.iterdir():
        if path.name == "lock":
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _leave(work: Path) -> None:
    """Take away a work folder that was just made."""
    shutil.rmtree(work)


def close(work: Path) -> None:
    """The run is finished: take the work folder away."""
    shutil.rmtree(work)


def is_finished(settings: PackSettings) -> dict[str, Any] | None:
    """The manifest of a finished run of equal settings, if that is what the folder holds."""
    output = Path(settings.output)
    manifest: dict[str, Any] | None = read_json(target_folder(settings, settings.max_tokens[-1]) / MANIFEST)
    if manifest is None or work_folder(output).exists() or manifest.get("identity") != settings.identity():
        return None
    return manifest


def target_folder(settings: PackSettings, max_tokens: int) -> Path:
    """Where the packs of one cap go: the output folder, or a folder in it when there are several caps."""
    output = Path(settings.output)
    return output if len(settings.max_tokens) == 1 else output / str(max_tokens)


def remove_partial_files(work: Path) -> None:
    """Delete what killed processes were writing."""
    for path in work.rglob(".*.partial"):
        path.unlink(missing_ok=True)
