"""Steps of `edgepeft tune` with hidden states kept against steps that compute them anew, interleaved.

    edgepeft export --backbone roberta-base --template pfeiffer:skip_layers=6 --out bundle
    python bench/prefix_cache.py bundle --template pfeiffer [--rows 200] [--length 64] [--batch-size 8] [--steps 1000]

Rows of random tokens, all of one length.  Each round does one step of both on the same rows, in turns; computing the
hidden states of all rows is measured whole.  The ratio is of --steps steps with that computation included: they are
--rounds measured ones (all, with --full), scaled up.  Evaluations are left out of both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from edgepeft.bench.result.statistics import ratio_of_totals
from edgepeft.bundle.bundle import Bundle
from edgepeft.data.batches import Encoded, epoch_batches
from edgepeft.device.machine import host_facts
from edgepeft.options.verbs import TuneSettings
from edgepeft.tuning.engine import OnnxRuntimeEngine
from edgepeft.tuning.memory import lay_out
from edgepeft.tuning.step import AdamW
from edgepeft.tuning.target import Files, TuningTarget, from_template

WARM_UP = 3


class Side:
    """One of the two: an engine, and the seconds of its steps."""

    def __init__(
        self, bundle: Bundle, target: TuningTarget, rows: dict[str, Encoded], work: Path, *, args: argparse.Namespace
    ):
        self.seconds = list[float]()
        self.layout = lay_out(bundle, target, args.options, rows, args.batch_size)
        optimizer = AdamW(dict.fromkeys(target.facts.trained, 1e-4))
        self.engine = OnnxRuntimeEngine(bundle, target, rows, self.layout, work, optimizer, args.options, args.threads)

    def step(self, chosen: list[int]) -> float:
        """One update; its loss."""
        start = time.perf_counter()
        loss = self.engine.step(chosen, 1.0, lambda _, __, shape: np.ones(shape, np.float32)).loss
        self.seconds.append(time.perf_counter() - start)
        return loss


def random_rows(bundle: Bundle, n: int, length: int, seed: int) -> Encoded:
    """Rows without padding, of two labels."""
    architecture, source = bundle.architecture, np.random.default_rng(seed)
    vocabulary = architecture.tensors["embeddings.word_embeddings.weight"][0]
    columns = {name: [np.ones(length, np.int64)] * n for name in architecture.inputs}
    columns["input_ids"] = [source.integers(5, vocabulary, length) for _ in range(n)]
    if "token_type_ids" in columns:
        columns["token_type_ids"] = [np.zeros(length, np.int64)] * n
    return Encoded(columns, np.arange(n) % 2, 0, architecture.pad_token_id)


def template_of(bundle: Bundle, name: str, options: TuneSettings) -> TuningTarget:
    """A task of two labels."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.jsonl"
        lines = [json.dumps({"sentence1": f"a {i}", "label": ("no", "yes")[i % 2]}) for i in range(40)]
        data.write_text("\n".join(lines) + "\n")
        return from_template(bundle, "bench", name, Files(data), options)


def measure_prefix_cache(args: argparse.Namespace) -> dict[str, Any]:
    """The document that is printed."""
    bundle = Bundle(args.bundle)
    target = template_of(bundle, args.template, args.options)
    n_eval = args.rows // 10
    rows = {
        "train": random_rows(bundle, args.rows - 2 * n_eval, args.length, 0),
        "eval": random_rows(bundle, n_eval, args.length, 1),
    }
    with tempfile.TemporaryDirectory() as work:
        kept = Side(bundle, target, rows, Path(work), args=args)
        if kept.layout.split is None:
            raise SystemExit(f"{args.template} has no prefix: {' '.join(kept.layout.notes)}")
        start = time.perf_counter()
        kept.engine.prepare()
        building = time.perf_counter() - start
        args.options = args.options.model_copy(update={"prefix_cache": False})
        whole = Side(bundle, target, rows, Path(work), args=args)
        rounds = args.steps if args.full else min(args.rounds, args.steps)
        order, epoch = list[list[int]](), 0
        while len(order) < rounds + WARM_UP:
            batches = epoch_batches(rows["train"].lengths, args.batch_size, 0, epoch)
            order += [batch for batch in batches if len(batch) == args.batch_size]
            epoch += 1
        difference = 0.0
        for number, chosen in enumerate(order[: rounds + WARM_UP]):
            sides = (kept, whole) if number % 2 else (whole, kept)
            losses = [side.step(chosen) for side in sides]
            difference = max(difference, abs(losses[0] - losses[1]))
    own, peer = kept.seconds[WARM_UP:], whole.seconds[WARM_UP:]
    ratio = ratio_of_totals([seconds + building / args.steps for seconds in own], peer)
    return {
        "bundle": str(args.bundle),
        "template": args.template,
        "rows": {part: len(part_rows.targets) for part, part_rows in rows.items()},
        "length": args.length,
        "batch_size": args.batch_size,
        "steps": args.steps,
        "measured_steps": rounds,
        "cut_at": [state.name for state in kept.layout.split.states],
        "building_s": building,
        "with_s": own,
        "without_s": peer,
        "ratio": ratio.value,
        "interval_95": [ratio.low, ratio.high],
        "ratio_of_steps": ratio_of_totals(own, peer).value,
        "largest_loss_difference": difference,
        "host": host_facts(),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--template", required=True)
    for name, default in (("rows", 200), ("length", 64), ("batch-size", 8), ("steps", 1000), ("rounds", 40)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--full", action="store_true", help="measure every step")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.options = TuneSettings(steps=args.steps, batch_size=args.batch_size)
    document = measure_prefix_cache(args)
    if args.json:
        args.json.write_text(json.dumps(document, indent=2) + "\n")
    low, high = document["interval_95"]
    print(
        f"{args.steps} steps with hidden states kept against without: {document['ratio']:.3f} times the throughput "
        f"({low:.3f} to {high:.3f}), building included."
    )
    print(
        f"building {document['building_s']:.2f} s; {document['measured_steps']} steps of both measured, a step alone "
        f"{document['ratio_of_steps']:.3f}; largest difference of a loss {document['largest_loss_difference']:.1e}."
    )


if __name__ == "__main__":
    main()
