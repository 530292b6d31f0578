"""Bundles whose graphs name a file of the host, whole by their own hashes; and whether running them touches that file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

SECRET = "what only this host's owner may read......"
Location = str | Path

FILES = {
    "backbone.onnx": ("backbone", "sha256", "graph"),
    "tasks/mood.onnx": ("tasks", "mood", "sha256"),
}


def outside(location: Location) -> TensorProto:
    """A tensor that lies in another file; 4 bytes a value."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[10], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", str(location)), ("offset", "0"), ("length", "40")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def of_a_function(graph: onnx.ModelProto, location: Location) -> None:
    node = helper.make_node("Constant", [], ["y"])
    node.attribute.append(onnx.AttributeProto(name="value", ref_attr_name="a", type=onnx.AttributeProto.TENSOR))
    function = helper.make_function("own", "F", [], ["y"], [node], [helper.make_opsetid("", 20)])
    function.attribute_proto.append(helper.make_attribute("a", outside(location)))
    graph.functions.append(function)
    graph.opset_import.append(helper.make_opsetid("own", 1))
    graph.graph.node.append(helper.make_node("F", [], ["stolen"], domain="own"))


def named_twice(graph: onnx.ModelProto, location: Location) -> None:
    tensor = next((t for t in graph.graph.initializer if t.external_data), None)
    if tensor is None:
        tensor = graph.graph.initializer.add()
        tensor.CopyFrom(outside("model.safetensors"))
    tensor.external_data.add(key="location", value=str(location))


def of_a_branch(graph: onnx.ModelProto, location: Location) -> None:
    branch = helper.make_graph([], "branch", [], [helper.make_tensor_value_info("w", 1, [10])], [outside(location)])
    graph.graph.initializer.append(helper.make_tensor("always", TensorProto.BOOL, [], [True]))
    node = helper.make_node("If", ["always"], ["stolen"], then_branch=branch, else_branch=branch)
    graph.graph.node.append(node)


def initializer(graph: onnx.ModelProto, location: Location) -> None:
    graph.graph.initializer.append(outside(location))


def of_a_constant(graph: onnx.ModelProto, location: Location) -> None:
    graph.graph.node.append(helper.make_node("Constant", [], ["stolen"], value=outside(location)))


NAMING = (of_a_function, named_twice, of_a_branch, initializer, of_a_constant)


def alter(bundle: Path, name: str, change: Callable[[onnx.ModelProto], object], behind: bytes = b"") -> None:
    """Change one graph, put what is no message yet ``behind`` it, and make the manifest's hash of it right."""
    path = bundle / name
    graph = onnx.load(path, load_external_data=False)
    change(graph)
    content = graph.SerializeToString() + behind
    path.write_bytes(content)
    document = json.loads((bundle / "edgepeft.json").read_bytes())
    holder = document
    for key in FILES[name][:-1]:
        holder = holder[key]
    holder[FILES[name][-1]] = hashlib.sha256(content).hexdigest()
    (bundle / "edgepeft.json").write_text(json.dumps(document))


_VERBS = (["verify"], ["run", "--no-cache", "--task", "mood", "w5"])


def naming_files(sound: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """`verify` and `run` on bundles that name a secret file: neither reads it, as the time of its last reading tells."""
    for verb in _VERBS:
        if _run(sound, verb).returncode:
            raise SystemExit(f"{' '.join(verb)} fails on the sound bundle: {_run(sound, verb).stderr}")
    secret = folder / "secret"
    secret.write_text(SECRET)
    for name in FILES:
        for attack in NAMING:
            for where in (secret, Path("..") / "secret"):
                bundle = Path(shutil.copytree(sound, folder / "bundle-that-names-files", dirs_exist_ok=True))
                alter(bundle, name, lambda graph, attack=attack, where=where: attack(graph, where))  # type: ignore[misc]
                os.utime(secret, (0, 0))
                told = [SECRET[:10] in done.stdout + done.stderr for done in (_run(bundle, verb) for verb in _VERBS)]
                untouched = secret.stat().st_atime == 0
                seen = bool(secret.read_text()) and secret.stat().st_atime > 0  # that this file system tells
                shutil.rmtree(bundle)
                yield {
                    "attack": f"{attack.__name__} in {name} names {'..' if where.parts[0] == '..' else '/'}",
                    "files_read_outside": int(not untouched or any(told)) if seen else None,
                    "held": seen and untouched and not any(told),
                }


def _run(bundle: Path, verb: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgepeft", verb[0], str(bundle), *verb[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


if __name__ == "__main__":
    sys.exit("this is what attack.py runs")
