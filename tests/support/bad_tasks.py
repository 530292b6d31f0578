"""Bundles with a task that cannot be opened, present at the start or arriving later; and a native call that does not end."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from service import started

Alter = Callable[[onnx.ModelProto], None]


def _metadata(**values: str) -> Alter:
    def alter(graph: onnx.ModelProto) -> None:
        for name, value in values.items():
            graph.metadata_props.add(key=f"edgepeft.{name}", value=value)

    return alter


def _no_shape(graph: onnx.ModelProto) -> None:
    for value in graph.graph.output:
        value.type.tensor_type.ClearField("shape")


def _no_inputs(graph: onnx.ModelProto) -> None:
    for node in graph.graph.node:
        del node.input[:]


def _no_outputs(graph: onnx.ModelProto) -> None:
    for node in graph.graph.node:
        del node.output[:]


def _no_nodes(graph: onnx.ModelProto) -> None:
    del graph.graph.node[:]


def _stops_in_a_run(graph: onnx.ModelProto) -> None:
    """Logits reshaped to a number of columns that they do not have."""
    for node in graph.graph.node:
        node.output[:] = ["whole" if name == "logits" else name for name in node.output]
    graph.graph.initializer.append(onnx.helper.make_tensor("columns", onnx.TensorProto.INT64, [2], [-1, 12_345]))
    graph.graph.node.append(onnx.helper.make_node("Reshape", ["whole", "columns"], ["logits"], name="reshaped"))


BAD: dict[str, Alter] = {
    "a placeholder id of thirty digits": _metadata(prompt_length="2", placeholder_id="9" * 30),
    "a placeholder id that no vocabulary has": _metadata(prompt_length="2", placeholder_id="9" * 12),
    "a prompt length of 5,000 digits": _metadata(prompt_length="9" * 5000),
    "logits without a shape": _no_shape,
    "nodes without inputs": _no_inputs,
    "nodes without outputs": _no_outputs,
    "no nodes": _no_nodes,
    "a graph that stops in a run": _stops_in_a_run,
}


def spoil(bundle: Path, alter: Alter, task: str = "mood") -> None:
    """Alter a task's graph, with the manifest's hash made right."""
    path, manifest = bundle / "tasks" / f"{task}.onnx", bundle / "edgepeft.json"
    graph = onnx.load(path)
    alter(graph)
    content = graph.SerializeToString()
    _replace(path, content)
    document = json.loads(manifest.read_bytes())
    document["tasks"][task]["sha256"] = hashlib.sha256(content).hexdigest()
    _replace(manifest, json.dumps(document).encode())


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_bytes(content)
    fresh.replace(path)


def ask(address: str, path: str, body: object = None) -> int:
    """The answer's status."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def comes(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Whether it comes true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def predict(address: str, task: str) -> int:
    return ask(address, f"/v1/tasks/{task}:predict", {"text": "w5"})


def _copy(bundle: Path, folder: Path, number: int) -> Path:
    return Path(shutil.copytree(bundle, folder / f"bad-{number}" / "bundle"))


def at_start(sound: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """The bad task is there when the service starts: the others answer, and the service says that it is ready."""
    for number, (name, alter) in enumerate(BAD.items()):
        bundle = _copy(sound, folder, number)
        spoil(bundle, alter)
        with started(bundle, folder / f"bad-{number}.log", ["--no-cache"]) as (_, address):
            ready = comes(lambda address=address: ask(address, "/readyz") == 200)  # type: ignore[misc]
            others = [predict(address, task) for task in ("pair", "score")] if ready else []
            bad = predict(address, "mood") if ready else None
        yield {
            "attack": f"{name}, at the start",
            "others": others,
            "bad": bad,
            "held": others == [200, 200] and bad == 503,
        }


def arriving(sound: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """The bad task arrives while the service runs: the others answer, and the next change is taken over."""
    bundle = _copy(sound, folder, 100)
    manifest, graph = (bundle / "edgepeft.json").read_bytes(), (bundle / "tasks" / "mood.onnx").read_bytes()
    with started(bundle, folder / "arriving.log", ["--no-cache"]) as (_, address):
        comes(lambda: ask(address, "/readyz") == 200)
        for name, alter in BAD.items():
            spoil(bundle, alter)
            refused = comes(lambda: predict(address, "mood") == 503)
            others = [predict(address, task) for task in ("pair", "score")]
            _replace(bundle / "tasks" / "mood.onnx", graph)
            _replace(bundle / "edgepeft.json", manifest)
            mended = comes(lambda: predict(address, "mood") == 200)
            held = refused and mended and others == [200, 200]
            yield {
                "attack": f"{name}, arriving later",
                "others": others,
                "refused": refused,
                "mended": mended,
                "held": held,
            }


_HUNG = (
    "import ctypes; from edgepeft.runtime.runtime import Runtime; "
    "Runtime.predict_mixed = lambda *_, **__: ctypes.CDLL(None).pause(); "
    "from edgepeft.cli._main import main; main()"
)


def hung(sound: Path, folder: Path) -> dict[str, Any]:
    """SIGTERM while a native call never ends: the process does, soon after its deadline."""
    with started(sound, folder / "hung.log", ["--no-cache", "--deadline", "2"], entry=_HUNG) as (process, address):
        comes(lambda: ask(address, "/readyz") == 200)
        status = predict(address, "mood")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(15)
        except subprocess.TimeoutExpired:
            code = None
        took = time.monotonic() - begin
    return {
        "attack": "SIGTERM while a native call hangs",
        "answer": status,
        "exit_code": code,
        "seconds": round(took, 1),
        "held": code is not None,
    }


if __name__ == "__main__":
    sys.exit("this is what attack.py runs")
