"""The gate's own check: one more copy of the activations in a delta is found by counting, and an equal bundle is not."""

from __future__ import annotations

import os
import shutil

import pytest

from bench import planted
from edgepeft.bench.operators import count_metrics
from edgepeft.bench.planning.target import open_subject, random_subject
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.resources import sha256_of


@pytest.mark.slow
def test_a_copy_in_a_delta_is_a_node_and_its_bytes_more_and_the_bundle_stays_whole(tmp_path):
    (folder := tmp_path / "plain").mkdir()
    plain = random_subject(planted.ARCHITECTURE, folder, methods=[planted.METHOD])
    copied = shutil.copytree(folder, tmp_path / "copied", copy_function=os.link)
    planted._add_copy(copied)
    graph = copied / "tasks" / f"{planted.METHOD}.onnx"
    assert Manifest.read(copied).tasks[planted.METHOD].sha256 == sha256_of(graph)
    before, after = (count_metrics(each, [16])[-1].values for each in (plain, open_subject(copied)))
    assert after["nodes"] == before["nodes"] + 1
    assert after["bytes_moved"] > before["bytes_moved"] and after["flops"] == before["flops"]
