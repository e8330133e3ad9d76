"""Attention over GPUs against an ideal split, and a decoder's measured against the planner's predicted time.

    python -m benchmarks.gpu                                  one GPU: packing, MFU, memory, prediction
    torchrun --nproc-per-node 8 -m benchmarks.gpu             and attention shared over 8 GPUs
    python -m benchmarks.gpu --device cpu --small             the same code, to see that it runs

Attention: forward + backward of each method on all ranks, over (one rank alone / degree + its messages).
Decoder: forward + backward on packs whose lengths differ. A cost model is fitted on every other pack and
asked for the rest. MFU counts 6 FLOPs a parameter and token, and 12 * head size * heads a layer and attended
pair, without recomputation, over the peak of the GPU in `balancer.costs.gpus`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from balancer import CostModel, Topology, runtime
from balancer.costs.gpus import GPUS
from balancer.sharding import shard

METHODS = ("all_gather", "ring", "ulysses")


class Share:
    """What `runtime.attention` asks of a batch."""

    step, slot, last_in_step, num_loss_tokens, step_loss_tokens = 0, 0, True, 0, 0

    def __init__(self, lengths: np.ndarray, degree: int = 1, cp_rank: int = 0, group: Any = None) -> None:
        self.seq_lengths, self.cp_degree, self.cp_rank, self.cp_group = lengths, degree, cp_rank, group
        self.num_ranks = degree


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.key_heads, size = heads, key_heads, width // heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * key_heads * size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.gate, self.down = (
            nn.Linear(a, b, bias=False)
            for a, b in ((width, 3 * width), (width, 3 * width), (3 * width, width))
        )

    def forward(self, x: Tensor, batch: Share) -> Tensor:
        y = self.norms[0](x)
        k, v = self.kv(y).unflatten(1, (2, self.key_heads, -1)).unbind(1)
        x = x + self.out(runtime.attention(self.q(y).unflatten(1, (self.heads, -1)), k, v, batch).flatten(1))
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Clock:
    """Seconds of a call, by events on a GPU and by the wall elsewhere; the largest over ranks."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, function: Callable[[], Any]) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if dist.is_initialized():
            dist.barrier()
        if self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            torch.cuda.synchronize()
            seconds = begin.elapsed_time(end) / 1e3
        else:
            start = time.perf_counter()
            function()
            seconds = time.perf_counter() - start
        if not dist.is_initialized():
            return seconds
        slowest = torch.tensor([seconds], device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return float(slowest)


def packs(tokens: int, count: int, seed: int = 0) -> list[np.ndarray]:
    """Packs of about ``tokens``: the first is one sample, later ones of ever shorter documents."""
    random = np.random.default_rng(seed)
    found = [np.array([tokens])]
    for number in range(1, count):
        mean = max(tokens / 2**number, 64)
        drawn = np.clip(random.lognormal(np.log(mean), 0.6, 4 * 2**number + 64).astype(int), 16, tokens)
        ends = np.minimum(np.cumsum(drawn), tokens)
        lengths = np.diff(ends, prepend=0)
        found.append(lengths[lengths > 0])
    return found


def qkv(rows: int, args: argparse.Namespace, device: torch.device) -> list[Tensor]:
    size = args.width // args.heads
    return [
        torch.randn(rows, heads, size, device=device, dtype=args.dtype, requires_grad=True)
        for heads in (args.heads, args.key_heads, args.key_heads)
    ]


def attention_rows(args: argparse.Namespace, device: torch.device, clock: Clock) -> list[dict[str, Any]]:
    """Every method at degree = ranks. Alternates with the rank alone, so that clocks drift together."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group = runtime.ContextGroups(Topology(ranks=ranks), [ranks]).get(0, ranks)
    peers = runtime.peers.Peers(group)
    rows = []
    for tokens in args.tokens:
        for lengths in packs(tokens * ranks, 3):
            whole, part = Share(lengths), Share(lengths, ranks, rank, group)
            local = shard(lengths, ranks, rank).index.size
            for method in METHODS:
                if method == "ulysses" and args.heads % ranks:
                    continue
                taken = []
                for repeat in range(args.repeats + 1):
                    alone_s = clock(attend(qkv(int(lengths.sum()), args, device), whole, "auto"))
                    moved_s = clock(lambda m=method, n=local: messages(m, n, peers, args, device))
                    method_s = clock(attend(qkv(local, args, device), part, method))
                    if repeat:
                        taken.append((alone_s, moved_s, method_s))
                alone_s, moved_s, method_s = (
                    statistics.median(column) for column in zip(*taken, strict=True)
                )
                ratio = statistics.median(m / (a / ranks + t) for a, t, m in taken)
                rows.append(
                    {
                        "samples": len(lengths),
                        "tokens": int(lengths.sum()),
                        "degree": ranks,
                        "method": method,
                        "alone_s": alone_s,
                        "messages_s": moved_s,
                        "method_s": method_s,
                        "ratio": ratio,
                    }
                )
    return rows


def attend(inputs: list[Tensor], batch: Share, method: str) -> Callable[[], None]:
    gradient = torch.ones_like(inputs[0])
    return lambda: runtime.attention(*inputs, batch, method).backward(gradient)


def messages(
    method: str, rows: int, peers: runtime.peers.Peers, args: argparse.Namespace, device: torch.device
) -> None:
    """The method's exchanges alone, forward and backward; gradients of keys travel in float32."""
    size = args.width // args.heads
    kv = torch.zeros(rows, 2, args.key_heads, size, device=device, dtype=args.dtype)
    if method == "all_gather":
        peers.reduce_scatter(peers.all_gather(kv).float())
    elif method == "ring":
        for number, tensor in ((2 * (peers.size - 1), kv), (peers.size, kv.float())):
            for _ in range(number):
                peers.shift(tensor, torch.empty_like(tensor)).wait()
    else:
        keys = max(args.key_heads, peers.size)
        heads, back = (args.heads + 2 * keys) // peers.size, args.heads // peers.size
        for count, dtype in (
            (heads, args.dtype),
            (back, args.dtype),
            (back, args.dtype),
            (heads, torch.float32),
        ):
            peers.all_to_all(torch.zeros(peers.size, rows, count, size, device=device, dtype=dtype))


def decoder_rows(args: argparse.Namespace, device: torch.device, clock: Clock) -> list[dict[str, Any]]:
    """Time, MFU and memory of forward + backward on each pack, and what a fitted cost model says."""
    layers = nn.ModuleList(Layer(args.width, args.heads, args.key_heads) for _ in range(args.layers))
    layers = layers.to(device, args.dtype)
    parameters = sum(p.numel() for p in layers.parameters())
    shapes = [lengths for tokens in args.tokens for lengths in packs(tokens, 6)]
    times: list[list[float]] = [[] for _ in shapes]
    memory = [0] * len(shapes)
    for repeat in range(args.repeats + 1):
        for number, lengths in enumerate(shapes):
            x = torch.randn(
                int(lengths.sum()), args.width, device=device, dtype=args.dtype, requires_grad=True
            )
            batch = Share(lengths)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds = clock(lambda x=x, batch=batch: forward_backward(layers, x, batch))
            if device.type == "cuda":
                memory[number] = torch.cuda.max_memory_allocated()
            if repeat:
                times[number].append(seconds)
    measured = [min(one) for one in times]
    fitted = CostModel.fit([(shapes[i], 1, measured[i]) for i in range(0, len(shapes), 2)])
    rows = []
    for number, (lengths, seconds) in enumerate(zip(shapes, measured, strict=True)):
        pairs = float((lengths * (lengths + 1) // 2).sum())
        flops = 6.0 * parameters * lengths.sum() + 12.0 * args.layers * args.width * pairs
        predicted = float(fitted(lengths).sum()) + fitted.fixed
        rows.append(
            {
                "samples": len(lengths),
                "tokens": int(lengths.sum()),
                "measured_s": seconds,
                "predicted_s": predicted,
                "error": predicted / seconds - 1,
                "fitted": number % 2 == 0,
                "mfu": flops / seconds / GPUS[args.gpu].flops if device.type == "cuda" else None,
                "memory_bytes": memory[number],
            }
        )
    return rows


def forward_backward(layers: nn.ModuleList, x: Tensor, batch: Share) -> None:
    for layer in layers:
        x = layer(x, batch)
    x.backward(torch.ones_like(x))
    layers.zero_grad()


def show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else f"{value}" for value in row.values()))
    Console(width=140).print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--gpu", default="h100", choices=sorted(GPUS), help="whose peak MFU is a share of")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768], help="of one rank")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--key-heads", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="sizes for a try on a CPU")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    args = parser.parse_args()
    if args.small:
        args.tokens, args.layers, args.width, args.heads, args.key_heads = [512, 1024], 2, 128, 4, 2
    args.dtype = torch.bfloat16 if args.device == "cuda" else torch.float32
    return args


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    device = torch.device(
        args.device, int(os.environ.get("LOCAL_RANK", 0)) if args.device == "cuda" else None
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    clock = Clock(device)
    shared = dist.is_initialized() and dist.get_world_size() > 1
    results = {"attention": attention_rows(args, device, clock)} if shared else {}
    results["decoder"] = decoder_rows(args, device, clock)
    if not dist.is_initialized() or dist.get_rank() == 0:
        for title, rows in results.items():
            show(title, rows)
        if args.json:
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
            environment = {"torch": torch.__version__, "device": name}
            args.json.write_text(json.dumps({"environment": environment, **results}, indent=1))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
