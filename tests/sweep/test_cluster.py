"""A real cluster of Ray: three nodes on loopback, of which one is killed outright (`pip install 'edgepeft[ray]'`)."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path

import psutil
import pytest
from inline import inline
from verbs import edgepeft

from edgepeft.common.errors import EdgepeftError, MissingPackage, UsageError
from edgepeft.sweep.local import CellRun
from edgepeft.sweep.run import run_sweep

ADDRESS = "127.0.0.1:6391"


@pytest.fixture
def nodes(monkeypatch):
    """Three nodes with a core each, with a token; a function that kills one that is not the head."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    # Only now: it reads the token when it is first imported.
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'edgepeft[ray]'")
    ray = str(Path(sys.executable).with_name("ray"))
    head = [ray, "start", "--head", f"--port={ADDRESS.rpartition(':')[2]}", "--include-dashboard=false"]
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray", ignore_cleanup_errors=True) as folder:  # sockets: short
        try:
            for command in ([*head, f"--temp-dir={folder}"], *[[ray, "start", f"--address={ADDRESS}"]] * 2):
                subprocess.run([*command, "--num-cpus=1", "--disable-usage-stats"], check=True, capture_output=True)
            raylets = [each for each in _processes(folder) if each.name() == "raylet"]
            assert len(raylets) == 3
            yield max(raylets, key=lambda each: each.create_time()).kill
        finally:
            for process in _processes(folder):
                with contextlib.suppress(psutil.Error):
                    process.kill()


def _processes(folder):
    """What was started for the cluster: their command lines name its folder."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found += [each] if folder in " ".join(each.cmdline()) else []
    return found


@pytest.mark.slow
def test_every_cell_is_there_and_equal_to_the_local_one_though_a_node_is_killed(nodes, swept, tmp_path):
    from edgepeft.sweep.cluster import Cluster

    sweep = swept(steps=200)
    here = dataclasses.replace(sweep, folder=tmp_path / "here")
    assert not run_sweep(here, inline, CellRun(here, here.cells[0]), watch=lambda _: None)
    connection, told = Cluster(ADDRESS), []
    assert connection.cores() == 3
    killer = threading.Timer(6, nodes)  # runs are under way
    killer.start()
    try:
        assert not run_sweep(sweep, connection.run, CellRun(sweep, sweep.cells[0]), watch=told.append)
    finally:
        killer.join()
        connection.close()
    names = sorted(each.job.cell.name for each in told if each.outcome)
    assert names == sorted(cell.name for cell in sweep.cells)
    for cell in sweep.cells:
        for name in ("delta.safetensors", "test.npz"):
            assert (sweep.run(cell) / name).read_bytes() == (here.run(cell) / name).read_bytes()
        cards = [each.card(cell).model_dump() for each in (sweep, here)]
        assert cards[0] == cards[1]


@pytest.mark.slow
def test_halving_brings_checkpoints_to_and_fro(nodes, swept):
    from edgepeft.sweep.cluster import Cluster

    sweep, connection = swept(steps=28), Cluster(ADDRESS)
    try:
        assert not run_sweep(sweep, connection.run, CellRun(sweep, sweep.cells[0]), halve=True, watch=lambda _: None)
    finally:
        connection.close()
    assert [sweep.state(cell) for cell in sweep.cells].count("dropped") == 2


def test_every_file_that_a_run_reads_goes_to_its_node(tmp_path):
    from edgepeft.sweep.cluster import Cluster

    cluster = Cluster.__new__(Cluster)
    cluster._ray, cluster._files = types.SimpleNamespace(put=lambda sent: sent), {}
    for name in ("model.gguf", "rows.csv", "order.json"):
        (tmp_path / name).write_text("{}")
    named = {"backbone": "model.gguf", "data": "rows.csv", "json_schema": "order.json"}
    sent = cluster._sources({option: str(tmp_path / name) for option, name in named.items()})
    assert [name for _, name, *_ in filter(None, sent)] == list(named.values())


def test_a_node_with_another_version_says_so(swept):
    from edgepeft.sweep.cluster import _remote

    sweep = swept()
    with pytest.raises(EdgepeftError, match=r"has edgepeft .*; the sweep is of edgepeft 0\.0\.1"):
        _remote("edgepeft 0.0.1", (CellRun(sweep, sweep.cells[0]), None), None, None, None, None)


def test_a_run_of_more_threads_than_any_node_has_is_refused_where_ray_would_wait_for_ever(swept):
    from edgepeft.sweep.cluster import Cluster

    cluster, sweep = Cluster.__new__(Cluster), swept()
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 8.0}}]
    cluster._ray = types.SimpleNamespace(nodes=lambda: nodes)
    with pytest.raises(UsageError, match="--threads 4: no node of the cluster has more than 2 cores"):
        next(cluster.run([CellRun(sweep, sweep.cells[0], threads=4)]))


def test_a_cluster_that_is_not_there_or_ray_that_is_not_installed_is_said(plan, tmp_path):
    from edgepeft.sweep.cluster import Cluster

    with pytest.raises((UsageError, MissingPackage), match=r"--ray"):
        Cluster("127.0.0.1:1")
    called = edgepeft("sweep", plan(), "--out", tmp_path / "out", "--ray", "127.0.0.1:1")
    assert called.returncode in (1, 2) and "--ray" in called.stderr
