"""Encoders with an assignment of their own: who encodes, who reads, and what a batch must know of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from balancer.exchange import ExchangeTable
from balancer.phases import Phase, PhasePlan, plan_phases
from balancer.plan import StepPlan
from loaders.batches.batch import Batch
from loaders.batches.collate import Packed
from loaders.batches.labels import IGNORED
from loaders.batches.reader import Reader
from loaders.batches.shares import LANGUAGE, Share, shares_of_rank
from loaders.catalog import Catalog
from loaders.media.config import PHASE_OF
from loaders.sources.base import Rows, Source
from loaders.sources.multimodal import MultimodalSource
from packing.table import SampleTable

ASSIGNMENTS = ("joint", "separate")
Ints = NDArray[np.int64]


def separate_planner(phases: Mapping[str, Phase | Any]) -> Callable[..., PhasePlan]:
    """A planner that divides each encoder's work by itself.

    Raises:
        ValueError: phases whose outputs cannot travel.
    """
    for name, phase in phases.items():
        if not isinstance(phase, Phase) or phase.bytes_per_unit is None:
            raise ValueError(
                f'assignment="separate" needs phases[{name!r}] as Phase(cost=..., bytes_per_unit=...): the '
                "bytes of output that travel for each unit."
            )
        if tuple(phase.cp_degrees) != (1,):
            raise ValueError(f"a separate phase is encoded whole: phases[{name!r}].cp_degrees must be (1,).")

    def plan(table: SampleTable, **options: Any) -> PhasePlan:
        return plan_phases(table, phases=phases, mode="separate", **options)

    return plan


def check_engine(engine: str) -> None:
    """Raises ValueError where samples are read elsewhere, before anything is started there."""
    if engine != "local":
        raise ValueError(
            f'assignment="separate" cannot be used with engine={engine!r}, whose readers give media together '
            'with their samples\' text. Leave the engine out, or use assignment="joint".'
        )


def check_sources(sources: Sequence[Source], collate_fn: Any) -> None:
    """Raises ValueError where encoder outputs cannot be read apart from their samples' text."""
    if collate_fn is not None:
        raise ValueError('assignment="separate" needs the loader\'s own layout: leave collate_fn out.')
    for source in sources:
        if not isinstance(source, MultimodalSource):
            if source.phases():
                raise ValueError(
                    f'assignment="separate" reads media of MultimodalSource, {source.name} is none.'
                )
        elif source.rules.on_bad != "error" or source.rules.on_mismatch == "drop":
            raise ValueError(
                f'{source.name}: assignment="separate" needs on_bad="error", and on_mismatch="repair" or '
                '"error": the rank that reads a sample cannot know that another could not decode it.'
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Separate:
    """One step's phases, each with its own assignment, and what travels between them."""

    plan: PhasePlan
    tables: Mapping[str, ExchangeTable]
    """By kind of medium; kinds that no sample of the step has are left out."""
    spans: Mapping[str, Mapping[tuple[int, int], slice]]
    """By kind, and by (rank, slot): the rows of one micro-batch among those that the rank receives."""

    def give(self, batch: Batch, rank: int) -> None:
        """Tell a batch of this rank what it sends or reads."""
        if batch.phase != LANGUAGE:
            batch.exchanges = {
                kind: table for kind, table in self.tables.items() if PHASE_OF[kind] == batch.phase
            }
            return
        nothing = slice(0, 0)
        batch.feature_rows = {
            kind: spans.get((rank, batch.slot), nothing) for kind, spans in self.spans.items()
        }

    def shares(self, table: SampleTable, *, rank: int, step: int, step_samples: int) -> list[Share]:
        """What ``rank`` does in a step: each encoder's work, at least one batch, then the language model's.

        A rank that has nothing to encode is given the smallest medium of a kind that others have, so that all
        run the same encoders; its rows go nowhere.
        """
        found = []
        for name in sorted(self.plan.encoders):
            kinds = [kind for kind in self.tables if PHASE_OF[kind] == name]
            if kinds:
                own = shares_of_rank(self.plan.encoders[name], table, rank=rank, step=step)
                found += [_of_encoder(share, name, kinds[0], table, step_samples) for share in own]
        return found + shares_of_rank(
            self.plan.language, table, rank=rank, step=step, step_samples=step_samples
        )


def _of_encoder(share: Share, name: str, filler: str, table: SampleTable, step_samples: int) -> Share:
    return replace(
        share,
        phase=name,
        last_in_step=False,
        last_in_phase=share.last_in_step,
        num_loss_tokens=np.zeros_like(share.num_loss_tokens),
        step_loss_tokens=int(table.num_loss_tokens.sum()),
        step_samples=step_samples,
        fillers=() if len(share) else (filler,),
    )


def separate_step(plan: PhasePlan, table: SampleTable, catalogs: Sequence[Catalog]) -> Separate:
    """The rows that travel: one for each of a medium's language tokens, as placeholders take them."""
    tables, spans = {}, {}
    for kind, counts in _media_tokens(catalogs, table).items():
        if counts.any() and PHASE_OF[kind] in plan.encoders:
            tables[kind] = ExchangeTable.from_plans(plan.encoders[PHASE_OF[kind]], plan.language, counts)
            spans[kind] = dict(_spans(plan.language, counts))
    return Separate(plan=plan, tables=tables, spans=spans)


def _media_tokens(catalogs: Sequence[Catalog], table: SampleTable) -> dict[str, Ints]:
    """[S] language tokens of each sample's media, by kind."""
    found: dict[str, Ints] = {}
    for number, catalog in enumerate(catalogs):
        if isinstance(catalog.source, MultimodalSource):
            mine = table.source == number
            for kind, tokens in catalog.source.media_tokens().items():
                column = found.setdefault(kind, np.zeros(len(table), np.int64))
                column[mine] = tokens[table.row[mine]]
    return dict(sorted(found.items()))


def _spans(language: StepPlan, counts: Ints) -> Iterator[tuple[tuple[int, int], slice]]:
    for rank in range(language.ranks):
        start = 0
        for m in language.for_rank(rank).tolist():
            stop = start + int(counts[language.micro_batches.samples(m)].sum())
            yield (rank, int(language.micro_batches.slot[m])), slice(start, stop)
            start = stop


class SeparateReader(Dataset[Packed]):
    """Text without media for the language model, and media without text for each encoder.

    Args:
        sources: by the numbers that shares use.
        phases: names of the encoders.
        options: of `Reader`.
    """

    def __init__(self, sources: Sequence[Source], phases: Sequence[str], **options: Any) -> None:
        self.language = Reader([_Part(source, ()) for source in sources], **options)
        self.encoders = {
            name: Reader([_Part(source, _kinds_of(name)) for source in sources], **options | {"pad_to": ()})
            for name in phases
        }

    def __getitem__(self, share: Share) -> Packed:
        if share.phase == LANGUAGE:
            return self.language[share]
        packed = self.encoders[share.phase][share]
        names = {name for name, rows in packed.token_rows.items()}
        features: dict[str, torch.Tensor] = {k: v for k, v in packed.features.items() if k not in names}
        return replace(packed, inputs=features, tokens=packed.tokens[:0], labels=None, token_rows={})


def _kinds_of(phase: str) -> tuple[str, ...]:
    return tuple(kind for kind, name in PHASE_OF.items() if name == phase)


class _Part(Source):
    """A source of which only some kinds of media are decoded."""

    def __init__(self, source: Source, kinds: tuple[str, ...]) -> None:
        self.source, self.kinds = source, kinds
        self.name = source.name

    def __len__(self) -> int:
        return len(self.source)

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.source, name)

    @property
    def divisible(self) -> bool:  # type: ignore[override]  # a class constant of other sources
        """As the source."""
        return self.source.divisible

    @property
    def knows_loss_tokens(self) -> bool:
        """As the source."""
        return self.source.knows_loss_tokens

    def lengths(self) -> Ints:
        """Those of the source."""
        return self.source.lengths()

    def fillers(self) -> Mapping[str, Rows]:
        """Those of the source."""
        return self.source.fillers()

    def joins(self) -> Mapping[str, Any]:
        """Those of the source."""
        return self.source.joins()

    def read(self, rows: Ints) -> Rows:
        """Text with expanded placeholders; features of some kinds."""
        if not isinstance(self.source, MultimodalSource):
            return self.source.read(rows)
        held = self.source.read(rows, kinds=self.kinds)
        if not self.kinds:
            return held
        return replace(held, labels=np.full(held.input_ids.size, IGNORED, np.int64))  # counted by its reader

    def origin(self, row: int) -> str:
        """As the source."""
        return self.source.origin(row)

    def fingerprint(self) -> str:
        """As the source."""
        return self.source.fingerprint()
