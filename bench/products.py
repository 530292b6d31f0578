"""Steps of `edgepeft train` with float32 products by oneDNN against steps by MKL, interleaved.

    python -m bench.products --backbone all-MiniLM-L6-v2 --data rows.jsonl [--method lora] [--rounds 20] [--json FILE]

Each round does one step of both on the same rows, in turns, after one of both that is not counted; rates are zero, so
that all steps are of the same tensors.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bench.result.statistics import paired_ratio
from edgepeft.bundle.delta import new_delta
from edgepeft.cli._main import main
from edgepeft.common.errors import UsageError
from edgepeft.data.batches import encode_parts, epoch_batches
from edgepeft.data.parts import load_data
from edgepeft.device.machine import cpu_model, host_facts
from edgepeft.methods.base import method_of
from edgepeft.training.devices import attention_for, float32_by_onednn
from edgepeft.training.engine import PyTorchEngine

CPU = torch.device("cpu")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def everything(_: int, __: float, shape: Sequence[int]) -> NDArray[np.float32]:
    """The mask of a dropout that drops nothing."""
    return np.ones(shape, np.float32)


@app.command()
def measure(
    *,
    backbone: Annotated[str, typer.Option(help="A folder in Hugging Face layout, or a Hub name.")],
    data: Annotated[Path, typer.Option(help="Labelled rows.")],
    method: Annotated[str, typer.Option(help="A PE method.")] = "lora",
    length: Annotated[int, typer.Option(min=1, help="Tokens kept of a text.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a step.")] = 16,
    rounds: Annotated[int, typer.Option(min=2, help="Steps of each side.")] = 20,
    threads: Annotated[int, typer.Option(min=1, help="Of PyTorch.")] = 1,
    out: Annotated[Path | None, typer.Option("--json", help="Where every sample goes.")] = None,
) -> None:
    """Print how many times the throughput oneDNN's steps have, with its 95 % interval."""
    torch.set_num_threads(threads)
    source, rows = open_backbone(backbone), load_data(data)
    if length > (most := source.architecture.max_length):
        raise UsageError(f"--length {length}: {source.source} has {most} positions.")
    encoded = encode_parts(rows, source.encoder(), length, source.architecture.pad_token_id)

    def engine(attention: str | None) -> PyTorchEngine:
        torch.manual_seed(0)
        delta = new_delta(source, method_of(method), "bench", rows.labels, max_length=length, kind=rows.task_kind.name)
        return PyTorchEngine(delta, load_model(source, attention), encoded, (0.0, 0.0), 1.0)

    with float32_by_onednn(CPU) as taken:
        if not taken:
            raise UsageError("this processor's products stay MKL's: edgepeft.training.devices says where oneDNN's do.")
    sides = {"onednn": engine(attention_for(True, length)), "mkl": engine(None)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    apart, batches = 0.0, epoch_batches(encoded["train"].lengths, batch_size, 0, 0)
    for number in range(rounds + 1):
        losses = {}
        for name in sorted(sides, reverse=bool(number % 2)):
            with float32_by_onednn(CPU) if name == "onednn" else nullcontext():
                start = time.perf_counter()
                losses[name] = sides[name].step(batches[number % len(batches)], 0.0, everything).loss
                seconds[name].append(time.perf_counter() - start)
        apart = max(apart, abs(losses["onednn"] - losses["mkl"]))
    timed = {name: values[1:] for name, values in seconds.items()}
    ratio = paired_ratio(timed["onednn"], timed["mkl"])
    what = (
        f"{method}, {batch_size} rows of at most {length} tokens, {threads} thread{'s' * (threads > 1)}, {cpu_model()}"
    )
    interval = f"{ratio.low:.2f} to {ratio.high:.2f}, {rounds} rounds"
    print(f"{what}: {ratio.value:.2f} times the throughput ({interval}); losses are at most {apart:.1e} apart.")
    if out is not None:
        facts = {"method": method, "length": length, "batch_size": batch_size, "threads": threads, "data": data.name}
        document = {**facts, "ratio": ratio.value, "interval_95": [ratio.low, ratio.high], "seconds": timed}
        out.write_text(
            json.dumps({**document, "largest_loss_difference": apart, "host": host_facts()}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main(app)
