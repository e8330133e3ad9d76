"""What a report takes for granted, in sentences."""

from __future__ import annotations

from balancer.cost import CostModel
from loaders.cli.plan_report import coefficients
from loaders.reporting import words
from loaders.reporting.report import Report

_RECOMPUTE = {
    "none": "Backward computes nothing again",
    "attention": "Backward computes attention again",
    "full": "Backward computes every layer's forward again, for memory",
}


def arbitrary(report: Report) -> bool:
    """Whether seconds are only good for comparison."""
    return report.question.cost.source == CostModel.generic().source


def assumptions(report: Report) -> list[str]:
    """One sentence or two for each."""
    question, topology = report.question, report.question.topology
    given = f", beyond the {words.duration(question.overhead_s)} a step that were given"
    found = [
        f"Cost: {question.cost.source}: {coefficients(question.cost)}.",
        _links(report),
        f"Lengths were read from {_origin(report)}. A step takes "
        f"{words.many(question.global_batch_size, 'sample')}, in "
        f"an order shuffled with seed {question.seed}; an epoch has "
        f"{words.many(report.steps_in_epoch, 'step')}.",
        "Not in the times: reading and decoding, failures, the exchange of gradients and the gathering of "
        f"sharded weights{given if question.overhead_s else ''}.",
        _pace(question.jitter),
        f"{_RECOMPUTE[question.recompute]} (recompute {question.recompute})." if question.model else "",
        _memory(report),
        "Today is taken to be what the packed loaders of most stacks do: every group the same number of "
        "samples, packed, at the smallest CP degree that holds the step's longest sample. The tuned degree "
        "holds the longest sample of all steps.",
        "With pipeline stages timelines show the first stage, and plans are made with a formula that the "
        "simulated walk may beat or exceed."
        if topology.pipeline_stages > 1
        else "",
        "Largest differencing is left out above 4,096 ranks, where it plans for seconds."
        if topology.ranks > 4096
        else "",
    ]
    return [sentence for sentence in found if sentence]


def _origin(report: Report) -> str:
    return "files of numbers" if report.lengths_from == "numbers" else report.lengths_from


def _links(report: Report) -> str:
    question = report.question
    if question.cost.communication is None:
        return "Sharing a sample among ranks is free of communication in this cost."
    node = question.topology.ranks_per_node or question.topology.ranks
    return f"{words.many(node, 'rank')} share a node's fast links; wider groups pay for the network."


def _pace(jitter: float) -> str:
    if not jitter:
        return "All GPUs run at one pace, which no cluster does; --jitter says otherwise."
    return (
        f"Each GPU's pace varies by {words.share(jitter)} (standard deviation) from step to step, drawn, not "
        "measured; no GPU is slow throughout. Timelines show plans, which do not know it."
    )


def _memory(report: Report) -> str:
    question, memory = report.question, report.question.memory
    if memory is None:
        return (
            "Memory is not known. Larger caps than today's, and whole weights where they are sharded today, "
            "are shown but not recommended."
        )
    ranks = question.topology.ranks
    step, micro_batch = (
        memory.state_bytes("step", ranks) / 1e9,
        memory.state_bytes("micro_batch", ranks) / 1e9,
    )
    return (
        f"Memory: {memory.gpu_bytes / 1e9:,.0f} GB a GPU less a tenth. Weights, gradients and Adam in mixed "
        f"precision take {step:,.1f} GB with sync step (optimizer shared out) and {micro_batch:,.1f} GB with "
        f"micro_batch (all shared out), each token {memory.bytes_per_token / 1e6:.2f} MB: a rank holds about "
        f"{memory.max_tokens('step', ranks):,} and {memory.max_tokens('micro_batch', ranks):,} tokens. An "
        "estimate: try the fullest micro-batch before a long run."
    )
