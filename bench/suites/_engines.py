"""Engines that run one bare encoder beside ours: who makes the model, who runs it, in 32 or in 8 bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.suites._suite_run import Racer, SuiteRun
from edgepeft.bench.planning.job import Batches
from edgepeft.bench.planning.target import torch_installed

OWN, OWN_INT8 = "edgepeft", "edgepeft int8"


@dataclass(frozen=True)
class Engine:
    """The peer ``name`` exports the model, with ``argument``; "" reads the checkpoint.  ``workload`` runs it.

    ``packages``: whose versions its figures depend on, ONNX Runtime's apart.
    """

    name: str
    packages: tuple[str, ...]
    workload: str = "peer"
    argument: str = ""
    int8: bool = False
    compute_type: str = ""

    @property
    def own_side(self) -> str:
        """Ours with weights of the same width."""
        return OWN_INT8 if self.int8 else OWN


_OPENVINO, _CTRANSLATE2 = "bench.peers.openvino.infer", "bench.peers.ctranslate2.encode"
ENGINES = {
    "optimum": Engine("optimum", ("optimum-onnx",)),
    "optimum O3": Engine("optimum_o3", ("optimum-onnx",)),
    "openvino": Engine("openvino", ("openvino",), _OPENVINO),
    "ctranslate2": Engine("encoder_ctranslate2", ("ctranslate2",), _CTRANSLATE2, compute_type="float32"),
    "torch.compile": Engine("", ("torch", "transformers"), "bench.peers.pytorch.infer_compiled"),
    "dynamic int8": Engine("dynamic_int8", ("optimum-onnx",), int8=True),
    "dynamic int8 by channel": Engine("dynamic_int8", ("optimum-onnx",), argument="channel", int8=True),
    "dynamic int8, plain": Engine("dynamic_int8", ("optimum-onnx",), argument="plain", int8=True),
    "openvino int8": Engine("openvino_int8", ("openvino", "nncf"), _OPENVINO, int8=True),
    "ctranslate2 int8": Engine("encoder_ctranslate2", ("ctranslate2",), _CTRANSLATE2, int8=True, compute_type="int8"),
}

FOR_ONE_TEXT = ("dynamic int8 by channel", "dynamic int8, plain")  # in no other form of request


def racers_of(
    run: SuiteRun, names: Iterable[str], batches: Batches, turns: Sequence[int] = ()
) -> tuple[dict[str, Racer], dict[str, str]]:
    """Ours in 32 and in 8 bits, and the engines of these names that are here; why the others are not.

    ``turns``: the number of each round's batch; without it each is one round's.
    """
    numbers = turns or range(len(batches))
    own = {OWN: run.bundle("bare"), OWN_INT8: run.bundle("int8", weights="int8")}
    racers = {side: Racer(run.job("infer_onnxruntime", at, batches=batches), numbers) for side, at in own.items()}
    missing: dict[str, str] = {}
    for name in names:
        engine = ENGINES[name]
        python = run.pythons.get(engine.name, "")
        if engine.name:
            model = run.peer(engine.name, task=engine.argument)
        else:
            model = run.plain() if torch_installed() else "torch is not installed (pip install 'edgepeft[train]')"
        if isinstance(model, str):
            missing[name] = model
            continue
        run.note_versions(name, engine.packages, python)
        settings = {"compute_type": engine.compute_type} if engine.compute_type else {}
        at = {"model": str(model)} if engine.name else {}
        folder = Path() if engine.name else own[OWN]
        job = run.job(engine.workload, folder, batches=batches, settings=settings, **at)
        racers[name] = Racer(job, numbers, python)
    return racers, missing
