"""The Hub carries the same files: by huggingface_hub, here with a folder in the Hub's place, for no test has a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import huggingface_hub
import pytest
import yaml
from boards_of import answers
from huggingface_hub import errors
from verbs import edgepeft


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """``revisions`` are folders, by name; what the library would do with them."""
    revisions = {}

    def download(repository, file, *, revision):
        assert repository == "acme/fleet"
        if not (revisions[revision] / file).is_file():
            raise errors.EntryNotFoundError(
                f"404: {file}", response=SimpleNamespace(headers={}, request=None, status_code=404)
            )
        return str(revisions[revision] / file)

    class Api:
        def create_repo(self, name, *, exist_ok):
            (tmp_path / "main").mkdir(exist_ok=exist_ok)
            revisions["main"] = tmp_path / "main"

        def upload_file(self, *, path_or_fileobj, path_in_repo, repo_id, commit_message):
            (tmp_path / "main" / path_in_repo).write_bytes(path_or_fileobj)

        def upload_folder(self, *, repo_id, folder_path, ignore_patterns, commit_message):
            shutil.copytree(folder_path, tmp_path / "main", dirs_exist_ok=True)
            return SimpleNamespace(commit_url=f"https://hub.example/{repo_id}/commit/1")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return revisions


def test_what_is_published_to_the_hub_is_pulled_from_it_and_a_revision_can_be_pinned(hub, fleet, retrained, tmp_path):
    words = ["--keys", fleet.keys, "--to-hub", "acme/fleet", "--license", "mit"]
    done = edgepeft("publish", fleet.bundle, fleet.repository, *words)
    assert done.returncode == 0 and "https://hub.example/acme/fleet/commit/1" in done.stderr, done.stderr
    front = yaml.safe_load((tmp_path / "main" / "README.md").read_text().split("---")[1])
    assert front["license"] == "mit" and {"edgepeft", "lora", "houlsby", "regression"} <= set(front["tags"])
    hub["v1"] = shutil.copytree(tmp_path / "main", tmp_path / "v1")
    edgepeft("publish", retrained / "newer", fleet.repository, *words)
    done = edgepeft("pull", "--from-hub", "acme/fleet@v1", tmp_path / "board", "--root", fleet.root)
    assert done.returncode == 0, done.stderr
    assert answers(tmp_path / "board") == answers(fleet.bundle)
    assert edgepeft("pull", "--from-hub", "acme/fleet", tmp_path / "board").returncode == 0
    assert answers(tmp_path / "board") == answers(retrained / "newer")


def test_without_a_network_the_cache_is_named(fleet, board):
    done = edgepeft("pull", "--from-hub", "acme/fleet", board)
    assert done.returncode == 1 and huggingface_hub.constants.HF_HUB_CACHE in done.stderr
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
