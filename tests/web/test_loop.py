"""The page's loop is Python's: which rows train, in which order, and torch's AdamW; by node without npm's packages."""

import math
import random

import numpy as np
import torch
from node import run_node

from edgepeft.data.batches import epoch_batches
from edgepeft.data.parts import PARTS, task_data
from edgepeft.data.rows import Row
from edgepeft.data.training_loop.run import evaluation_interval, rate_factor, warmup_steps
from edgepeft.options.base import TrainingLoopOptions

LOOP = 'const { parted, epochBatches, plan, rateFactor } = await import(MODULE + "loop.js");'


def drawn_rows(n, seed, *, pairs):
    draw = random.Random(seed)
    labels = ["ja", "nein", "weiß nicht"]
    weights = [5, 2, 1]
    words = ["soup", "cold", "é", "日本", "👍🏽", "\u05e9"]
    texts = {" ".join(draw.choices(words, k=draw.randrange(1, 6))) for _ in range(4 * n)}
    chosen = sorted(texts)[:n]
    second = [f"second {i}" if pairs else None for i in range(len(chosen))]
    return [
        Row(text, other, draw.choices(labels, weights)[0], "typed", i)
        for i, (text, other) in enumerate(zip(chosen, second, strict=True))
    ]


def test_rows_are_held_out_as_python_holds_them_out():
    sets = [drawn_rows(n, seed, pairs=pairs) for seed, (n, pairs) in enumerate([(20, False), (25, True), (61, False)])]
    for share in (0.1, 0.2):
        given = [[{"text": r.sentence1, "second": r.sentence2, "label": r.label} for r in rows] for rows in sets]
        script = f"{LOOP} return Promise.all(given.sets.map((rows) => parted(rows, given.share)));"
        found = run_node(script, {"sets": given, "share": share})
        for rows, parts in zip(sets, found, strict=True):
            data = task_data(rows, share, share)
            for name in PARTS:
                assert [row["text"] for row in parts[name]] == [row.sentence1 for row in getattr(data, name)], name


def test_batches_and_rates_are_those_of_a_loop():
    draw = random.Random(3)
    given = [[draw.randrange(3, 40) for _ in range(n)] for n in (2, 12, 45, 530)]
    script = f"""{LOOP} return Promise.all(given.map(async (lengths) => {{
      const loop = plan(lengths.length);
      const batches = [];
      for (const epoch of [0, 1, 7]) batches.push(await epochBatches(lengths, loop.batch, 5, epoch));
      return {{ ...loop, batches, rates: Array.from({{ length: loop.total }}, (_, i) => rateFactor(i, loop)) }};
    }}));"""
    for lengths, found in zip(given, run_node(script, given), strict=True):
        size = min(16, len(lengths))
        per_epoch = math.ceil(len(lengths) / size)
        total = TrainingLoopOptions().total_steps(per_epoch)
        warmup = warmup_steps(total, 0.1)
        expected = [per_epoch, total, evaluation_interval(per_epoch, total), warmup]
        assert [found[name] for name in ("perEpoch", "total", "interval", "warmup")] == expected
        assert found["batches"] == [epoch_batches(lengths, size, 5, epoch) for epoch in (0, 1, 7)]
        np.testing.assert_allclose(found["rates"], [rate_factor(i, warmup, total) for i in range(total)], rtol=1e-12)


def test_adamw_is_torchs_with_clipped_gradients():
    draw = np.random.default_rng(0)
    start = {"layer/A": draw.normal(size=(3, 4)), "head/b": draw.normal(size=5)}
    gradients = [{name: draw.normal(size=t.shape) * scale for name, t in start.items()} for scale in (3, 1e-3, 0.5, 9)]
    factors, rates, decay = [0.0, 0.5, 1.0, 0.25], {"layer/A": 1e-2, "head/b": 0.3}, 0.01
    tensors = {name: torch.tensor(t, requires_grad=True) for name, t in start.items()}
    groups = [{"params": [tensor], "lr": rates[name]} for name, tensor in tensors.items()]
    optimizer = torch.optim.AdamW(groups, weight_decay=decay)
    norms = []
    for factor, step in zip(factors, gradients, strict=True):
        for group, (name, tensor) in zip(optimizer.param_groups, tensors.items(), strict=True):
            group["lr"] = rates[name] * factor
            tensor.grad = torch.tensor(step[name])
        norms.append(float(torch.nn.utils.clip_grad_norm_(tensors.values(), 1.0)))
        optimizer.step()
    script = """
    const { AdamW, clip } = await import(MODULE + "adamw.js");
    const floats = (tensors) => Object.fromEntries(Object.entries(tensors).map(([name, t]) => [name, Float32Array.from(t.flat())]));
    const optimizer = new AdamW(given.rates, given.decay);
    const trained = floats(given.start);
    const norms = given.gradients.map((step, i) => {
      const gradients = floats(step);
      const norm = clip(gradients, 1);
      optimizer.update(trained, gradients, given.factors[i]);
      return norm;
    });
    return { norms, trained: Object.fromEntries(Object.entries(trained).map(([name, t]) => [name, [...t]])) };
    """
    plain = {"start": _lists(start), "gradients": [*map(_lists, gradients)]}
    found = run_node(script, {**plain, "rates": rates, "decay": decay, "factors": factors})
    np.testing.assert_allclose(found["norms"], norms, rtol=1e-6)
    for name, tensor in tensors.items():
        # Each of four steps rounds tensor and moments to float32; an update is at most its rate.
        bound = 16 * np.finfo(np.float32).eps * (np.abs(start[name]).max() + sum(factors) * rates[name])
        np.testing.assert_allclose(found["trained"][name], tensor.detach().numpy().ravel(), atol=bound)


def _lists(tensors):
    return {name: tensor.tolist() for name, tensor in tensors.items()}
