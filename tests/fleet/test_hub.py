"""The Hub carries the same files; here a server over loopback is in its place, for no test has a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import huggingface_hub.constants
import huggingface_hub.file_download
import pytest
import yaml
from boards_of import answers
from verbs import edgepeft


@pytest.fixture
def hub(monkeypatch):
    """A Hub over loopback; what the library's uploads would do to it."""
    from hub_server import hub

    with hub() as server:

        class Api:
            def create_repo(self, name, *, exist_ok):
                assert name == "acme/fleet" and exist_ok

            def upload_file(self, *, path_or_fileobj, path_in_repo, repo_id, commit_message):
                server.put({path_in_repo: path_or_fileobj})

            def upload_folder(self, *, repo_id, folder_path, ignore_patterns, commit_message):
                files = [path for path in Path(folder_path).rglob("*") if path.is_file()]
                name = server.put({path.relative_to(folder_path).as_posix(): path.read_bytes() for path in files})
                return SimpleNamespace(commit_url=f"https://hub.example/{repo_id}/commit/{name}")

        monkeypatch.setattr(huggingface_hub, "HfApi", Api)
        template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield server


def test_what_is_published_to_the_hub_is_pulled_from_it_and_a_revision_can_be_pinned(hub, fleet, retrained, tmp_path):
    words = ["--keys", fleet.keys, "--to-hub", "acme/fleet", "--license", "mit"]
    done = edgepeft("publish", fleet.bundle, fleet.repository, *words)
    first = [*hub.commits][-1]
    assert done.returncode == 0 and f"https://hub.example/acme/fleet/commit/{first}" in done.stderr, done.stderr
    front = yaml.safe_load(hub.commits[first]["README.md"].decode().split("---")[1])
    assert front["license"] == "mit" and {"edgepeft", "lora", "houlsby", "regression"} <= set(front["tags"])
    edgepeft("publish", retrained / "newer", fleet.repository, *words)
    done = edgepeft("pull", "--from-hub", f"acme/fleet@{first}", tmp_path / "board", "--root", fleet.root)
    assert done.returncode == 0, done.stderr
    assert answers(tmp_path / "board") == answers(fleet.bundle)
    assert edgepeft("pull", "--from-hub", "acme/fleet", tmp_path / "board").returncode == 0
    assert answers(tmp_path / "board") == answers(retrained / "newer")
    done = edgepeft("pull", "--from-hub", "acme/fleet@v9", tmp_path / "board")
    assert done.returncode == 1 and "RevisionNotFound" in done.stderr, done.stderr


def test_offline_is_said(fleet, board):
    done = edgepeft("pull", "--from-hub", "acme/fleet", board)
    assert done.returncode == 1 and "HF_HUB_OFFLINE is set" in done.stderr
    assert edgepeft("pull", "--from-hub", "fleet", board).returncode == 2


@pytest.mark.slow
def test_its_own_client_carries_it_over_http(fleet, retrained, tmp_path):
    """By the endpoints of the Hub itself, on a server over loopback: in processes, for the library reads its settings once."""
    from hub_server import hub

    with hub() as server:
        place = {"HF_ENDPOINT": server.address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "cache")}

        def run(*words):
            command = [sys.executable, "-m", "edgepeft", *map(str, words)]
            return subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True, check=False)

        words = [fleet.repository, "--keys", fleet.keys, "--to-hub", "acme/fleet", "--license", "mit"]
        done = run("publish", fleet.bundle, *words)
        first = [*server.commits][-1]
        assert done.returncode == 0 and first in "".join(done.stderr.split()), done.stderr
        there = {str(p.relative_to(fleet.repository)) for p in fleet.repository.rglob("*") if p.is_file()}
        assert server.commits[first].keys() - {"README.md"} == {path for path in there if not path.startswith(".")}
        assert run("publish", retrained / "newer", *words).returncode == 0
        done = run("pull", "--from-hub", f"acme/fleet@{first}", tmp_path / "board", "--root", fleet.root)
        assert done.returncode == 0, done.stderr
        assert answers(tmp_path / "board") == answers(fleet.bundle)
        done = run("pull", "--from-hub", "acme/fleet", tmp_path / "board")
        assert done.returncode == 0 and answers(tmp_path / "board") == answers(retrained / "newer"), done.stderr
        done = run("pull", "--from-hub", "acme/fleet@v9", tmp_path / "board")
        assert done.returncode == 1 and "RevisionNotFound" in done.stderr, done.stderr
