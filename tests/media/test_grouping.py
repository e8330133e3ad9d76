"""Samples with the same media go together, so that few ranks need fillers (case U20)."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from balancer import CostModel, Topology, check_plan, plan_step
from balancer.phases import Phase
from loaders import DataLoader, MultimodalSource
from loaders.planning.grouping import media_sets, plan_by_media
from packing.table import SampleTable
from tests.loaders.arrays import ArraySource, epoch_of, ids_of, merged, on_all_ranks
from tests.media.files import MediaRows, clip, picture, text
from tests.media.test_loader import IMAGE, VIDEO, check_media, rules

COST = CostModel(linear=1e-4, fixed=1e-3)
calls = ("pixel_values", "pixel_values_videos")


def u20_source():
    """32 samples of which 5 have pictures and 2 video."""
    rows = [{"input_ids": text(10 + k)} for k in range(32)]
    for k in (1, 9, 17, 25, 30):
        rows[k] = {"input_ids": [*text(8), 2, IMAGE, 3, 99], "images": picture(60, 60)}
    for k in (2, 3):
        rows[k] = {"input_ids": [*text(8), VIDEO, 99], "video": clip(4)}
    return MultimodalSource(MediaRows(rows), rules(audio=None))


@pytest.mark.parametrize("phases", [None, {"vision": Phase(cost=COST)}])
def test_u20_grouped_ranks_run_the_same_encoders_in_every_slot_with_fewer_fillers(phases):
    told = {}
    for grouped in (False, True):
        loaders = on_all_ranks(
            u20_source(),
            4,
            batch_size=8,
            max_tokens=64,
            sync="micro_batch",
            cost=COST,
            phases=phases,
            group_media=grouped,
            fill_media=True,
        )
        steps = [epoch_of(loader) for loader in loaders]
        assert sorted(row for step in ids_of(merged(steps)) for _, row in step) == list(range(32))
        for step in zip(*steps, strict=True):
            for together in zip(*step, strict=True):
                assert len({tuple(key in batch for key in calls) for batch in together}) == 1
            for batch in chain.from_iterable(step):
                check_media(batch)
                assert batch["input_ids"].shape[1] <= 64
        told[grouped] = sum(loaders[0].metrics()["filler_media"].values())
    assert 0 < told[True] < told[False]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 9),
)
@example(lengths=[1, 1, 1, 39, 47, 60], ranks=1, seed=0)  # whose seconds add up to a bit below the bound
def test_a_grouped_plan_keeps_every_law_and_mixes_no_sets(lengths, ranks, seed):
    draw = np.random.default_rng(seed)
    present = {kind: draw.random(len(lengths)) < 0.3 for kind in ("image", "audio")}
    table = SampleTable.from_lengths(np.array(lengths))
    sets = media_sets(present, len(lengths))
    options = {
        "topology": Topology(ranks=ranks),
        "max_tokens": 64,
        "cost": COST,
        "cp_degrees": (1,),
        "sync": "micro_batch",
    }
    plan = plan_by_media(plan_step, table, sets, **options)
    check_plan(plan, table, max_tokens=64, cost=COST)
    slots = plan.micro_batches.slot
    for slot in range(plan.num_slots):
        found = {
            int(sets[sample])
            for m in np.flatnonzero(slots == slot)
            for sample in plan.micro_batches.samples(int(m))
        }
        assert len(found) == 1
    assert plan.time_s >= plan.lower_bound_s
    assert plan.lower_bound_s == plan_step(table, **options).lower_bound_s


def test_u20_text_alone_is_planned_as_without_grouping():
    arguments = {"batch_size": 4, "max_tokens": 64, "sync": "micro_batch", "cost": COST}
    source = ArraySource([5, 9, 30, 11, 4, 17])
    free, grouped = DataLoader(source, **arguments), DataLoader(source, **arguments, group_media=True)
    assert [free.step(k).plan.digest() for k in range(2)] == [grouped.step(k).plan.digest() for k in range(2)]


def test_grouping_where_ranks_meet_once_a_step_is_refused():
    with pytest.raises(ValueError, match="group_media only has an effect with sync"):
        DataLoader(ArraySource([3]), max_tokens=8, group_media=True)
