"""Does the gate find what it should?  Plants slowdowns of known size and prints how often they are found.

    python bench/planted.py [--repeats 20] [--rounds 40] [--launches 2] [--least 0.05] [--percents 0 3 5 10 20]
                            [--json table.json]
    python bench/planted.py --counted      # minutes less: what counted figures find, whatever the host's load

Each time, two bundles of random weights and two copies of this version of edgepeft are measured side by side, as
`edgepeft bench --against` does; the new side has the slowdown.  Half of them are an extra operator in the graph (a
product that is as large as takes the share of a step's time, by a measurement before), half a sleep at the end of the
step.  At 0 % both sides are the same.

``--counted`` does what `edgepeft bench --deterministic` and `compare` do instead: of the operators, and of one extra
copy of the activations in a LoRA delta, which takes so little time that no clock finds it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import edgepeft
from edgepeft.bench.against import SideBySide, open_revision
from edgepeft.bench.compare import ResultFile, compare_results
from edgepeft.bench.operators import count_metrics
from edgepeft.bench.planning.target import BenchSubject, random_subject
from edgepeft.bench.run import run_benchmark
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.atomic import write_atomically, write_json
from edgepeft.common.resources import sha256_of
from edgepeft.options.verbs import BenchOptions

ARCHITECTURE = "all-MiniLM-L6-v2"
BATCH, LENGTH = 8, 64
LEAST = 0.05  # what the gate is asked for
KINDS = ("operator", "sleep")
METHOD = "lora"  # whose delta a copy is planted in
TRIED = 0.5  # of the graph's operations, to learn what an operator's take


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    if arguments.counted:
        print(_counted(arguments))
        return
    rows = []
    with tempfile.TemporaryDirectory(prefix="edgepeft-planted-") as work:
        (folder := Path(work) / "plain").mkdir()
        plain = random_subject(ARCHITECTURE, folder)
        (row,) = run_benchmark(_request(folder, 10)).result.results
        step_s = float(np.median(row.samples_s))
        cost = _operator_cost(plain, arguments)
        print(f"a step takes {step_s:.4f} s, an operator {cost:.2f} of its share of operations", file=sys.stderr)
        for percent in arguments.percents:
            for repeat in range(arguments.repeats):
                kind = KINDS[repeat % 2]
                began = time.monotonic()
                share = percent / 100 / (cost if kind == "operator" else 1.0)
                outcome = _one(plain, share, step_s if kind == "sleep" else None, arguments, seed=repeat)
                rows.append({"percent": percent, "kind": kind, "seconds": time.monotonic() - began, **outcome})
                print(f"{percent:3d} % {kind:8s} {outcome['verdict']:6s} {outcome['value']:.3f}", file=sys.stderr)
                if arguments.json:
                    write_json(
                        arguments.json,
                        {
                            **{name: getattr(arguments, name) for name in ("rounds", "launches", "least")},
                            "step_s": step_s,
                            "operator_cost": cost,
                            "runs": rows,
                        },
                    )
    print(_table(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--launches", type=int, default=2)
    parser.add_argument("--least", type=float, default=LEAST, help="the smallest loss that matters, as a share")
    parser.add_argument("--counted", action="store_true")
    parser.add_argument("--profile", default="rpi4")
    parser.add_argument("--percents", type=int, nargs="+", default=[0, 3, 5, 10, 20])
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _request(bundle: Path, rounds: int, profile: str = "rpi4", seed: int = 0) -> BenchOptions:
    return BenchOptions(
        profile=profile,
        bundle=bundle,
        engines=("onnxruntime",),
        workloads=("infer",),
        batch_size=BATCH,
        length=LENGTH,
        rounds=rounds,
        seed=seed,
    )


def _operator_cost(subject: BenchSubject, arguments: argparse.Namespace) -> float:
    """Share of a step's time over share of its operations: one large product runs faster than a graph."""
    ratios = [float(str(_one(subject, TRIED, None, arguments, seed=seed)["value"])) for seed in range(3)]
    return (1 / float(np.median(ratios)) - 1) / TRIED


def _one(
    plain: BenchSubject, share: float, step_s: float | None, arguments: argparse.Namespace, seed: int
) -> dict[str, object]:
    """One comparison; the new side is slower by ``share`` of a step, asleep if its seconds are given."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepeft-planted-")))
        # The weights are large and stay as they are; a graph that is written anew replaces its link.
        bundle = shutil.copytree(plain.bundle.folder, work / "new", copy_function=os.link)
        if step_s is None and share:
            _add_operator(bundle, plain, share)
        base = _package(work / "base")
        side = SideBySide(open_revision(str(base), work), arguments.launches)
        side.bundles[str(bundle)] = str(plain.bundle.folder)
        with _sleeping(share * (step_s or 0.0)):
            outcome = run_benchmark(_request(bundle, arguments.rounds, arguments.profile, seed), against=side)
        result, _ = side.annotate(outcome.result, outcome.measured, arguments.least)
    ratio = result.results[0].against
    assert ratio is not None  # both versions did all rounds
    return {name: getattr(ratio, name) for name in ("verdict", "value", "low", "high")}


def _package(folder: Path) -> Path:
    """This version, copied: the base."""
    source = Path(edgepeft.__file__).parent
    shutil.copytree(source, folder / "edgepeft", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@contextmanager
def _sleeping(seconds: float) -> Iterator[None]:
    """Workers of the new side sleep that long in every step; those of the base are another package's."""
    with tempfile.TemporaryDirectory(prefix="edgepeft-sleep-") as work:
        if not seconds:
            yield
            return
        package = _package(Path(work)) / "edgepeft"
        file = package / "bench" / "workloads" / "models.py"
        code = file.read_text(encoding="utf-8")
        planted = code.replace(
            "    return Prepared(step)\n",
            f"    return Prepared(lambda batch: (step(batch), time.sleep({seconds!r}))[0])\n",
            1,
        )
        if planted == code:
            raise SystemExit("the step of models.py is not where this script looks for it")
        first = "from __future__ import annotations\n"
        file.write_text(planted.replace(first, f"{first}\nimport time\n", 1))
        before = edgepeft.__file__
        edgepeft.__file__ = str(package / "__init__.py")  # where workers find the package
        try:
            yield
        finally:
            edgepeft.__file__ = before


def _add_operator(bundle: Path, plain: BenchSubject, share: float) -> None:
    """A product on the last hidden state whose operations are that share of the graph's."""
    path = bundle / "backbone.onnx"
    model = onnx.load(path, load_external_data=False)
    whole = next(e for e in count_metrics(plain, [LENGTH] * BATCH) if e.of.startswith("backbone"))
    rows = 4  # what count_metrics counts
    hidden, tokens = plain.architecture.hidden_size, rows * LENGTH
    width = max(1, round(share * whole.values["flops"] / (2 * tokens * hidden)))
    node = next(n for n in reversed(model.graph.node) if n.op_type == "LayerNormalization")
    value = node.output[0]
    weight = np.random.default_rng(0).standard_normal((hidden, width)).astype(np.float32) / hidden
    model.graph.initializer.append(numpy_helper.from_array(weight, "planted.weight"))
    zero = numpy_helper.from_array(np.zeros((), np.float32), "planted.zero")
    model.graph.initializer.append(zero)
    renamed = f"{value}.before"
    node.output[0] = renamed
    place = list(model.graph.node).index(node) + 1
    planted = [
        helper.make_node("MatMul", [renamed, "planted.weight"], ["planted.product"], "planted"),
        # Its result must be needed, and change nothing: the least of a row times zero.
        helper.make_node("ReduceMin", ["planted.product"], ["planted.least"], "planted.least", keepdims=0),
        helper.make_node("Mul", ["planted.least", "planted.zero"], ["planted.none"], "planted.none"),
        helper.make_node("Add", [renamed, "planted.none"], [value], "planted.add"),
    ]
    for offset, one in enumerate(planted):
        model.graph.node.insert(place + offset, one)
    write_atomically(path, model.SerializeToString())  # in the place of the link to the plain one
    manifest = Manifest.read(bundle)
    hashes = manifest.backbone.sha256.model_copy(update={"graph": sha256_of(path)})
    entry = manifest.backbone.model_copy(update={"sha256": hashes})
    manifest.model_copy(update={"backbone": entry}).write(bundle)


def _add_copy(bundle: Path) -> None:
    """One value of the delta is copied once more before it is read."""
    path = bundle / "tasks" / f"{METHOD}.onnx"
    model = onnx.load(path)
    place, node = next((i, n) for i, n in enumerate(model.graph.node) if n.op_type == "Add")
    value = node.output[0]
    node.output[0] = f"{value}.before"
    model.graph.node.insert(place + 1, helper.make_node("Concat", [node.output[0]], [value], "planted", axis=0))
    write_atomically(path, model.SerializeToString())
    manifest = Manifest.read(bundle)
    entry = manifest.tasks[METHOD].model_copy(update={"sha256": sha256_of(path), "n_bytes": path.stat().st_size})
    manifest.model_copy(update={"tasks": {**manifest.tasks, METHOD: entry}}).write(bundle)


def _counted(arguments: argparse.Namespace) -> str:
    """How often `compare` finds each planted loss by counted figures, and what it names of the last one."""
    lines = ["| planted | times | found | seconds each | named, the last |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="edgepeft-planted-") as work:
        (folder := Path(work) / "plain").mkdir()
        plain = random_subject(ARCHITECTURE, folder, methods=[METHOD])
        base = _counts(folder, arguments.profile)
        planted = {f"{percent} % operator": percent / 100 for percent in arguments.percents}
        for name, share in {**planted, f"a copy in a {METHOD} delta": None}.items():
            began, found, grown = time.monotonic(), 0, list[str]()
            for _ in range(arguments.repeats):
                with tempfile.TemporaryDirectory(prefix="new-", dir=work) as new:
                    bundle = shutil.copytree(folder, Path(new) / "bundle", copy_function=os.link)
                    if share is None:
                        _add_copy(bundle)
                    elif share:
                        _add_operator(bundle, plain, share)
                    comparison = compare_results(base, _counts(bundle, arguments.profile), LEAST)
                found += comparison.failed
                grown = [f"{each.name} of {each.of} {each.change:+.2%}" for each in comparison.grown]
            each_s = (time.monotonic() - began) / arguments.repeats
            lines.append(f"| {name} | {arguments.repeats} | {found} | {each_s:.0f} | {'; '.join(grown[-2:]) or '-'} |")
    return "\n".join(lines)


def _counts(bundle: Path, profile: str) -> ResultFile:
    request = _request(bundle, 1, profile).model_copy(update={"timed": False, "counted": True})
    return ResultFile(bundle, run_benchmark(request).result)


def _table(rows: list[dict[str, object]]) -> str:
    lines = ["| planted | kind | times | found slower | median ratio |", "|---|---|---|---|---|"]
    for percent in dict.fromkeys(row["percent"] for row in rows):
        for kind in (*KINDS, "both"):
            own = [row for row in rows if row["percent"] == percent and kind in ("both", row["kind"])]
            if own:
                slower = sum(row["verdict"] == "slower" for row in own)
                ratio = float(np.median([float(str(row["value"])) for row in own]))
                lines.append(f"| {percent} % | {kind} | {len(own)} | {slower} | {ratio:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
