"""What lies in a bundle's folder is looked at before it is opened: every verb meets it at the manifest."""

import os
import socket

import pytest
from verbs import edgepeft

from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import BundleError, UsageError


@pytest.mark.parametrize("name", ["tasks/mood.onnx", "tokenizer.json", "model.safetensors", "backbone.onnx", "other"])
def test_a_fifo_is_refused_and_not_waited_for(bundle, name):
    (bundle / name).unlink(missing_ok=True)
    os.mkfifo(bundle / name)
    with pytest.raises(BundleError, match="no regular file"):
        Bundle(bundle)
    assert edgepeft("run", bundle, "--task", "mood", "w5").returncode == 1  # it ends


@pytest.mark.parametrize("beneath", [True, False])
def test_a_path_that_neither_onnx_runtime_nor_tokenizers_open_is_called_so(bundle, tmp_path, monkeypatch, beneath):
    """It was called a tokenizer.json that is missing."""
    try:
        (odd := tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    bundle.rename(odd / "bundle")
    monkeypatch.chdir(odd if beneath else tmp_path)
    done = edgepeft("run", "bundle" if beneath else odd / "bundle", "--task", "mood", "w5")
    assert done.returncode == 2 and "bytes that are no UTF-8" in done.stderr


def test_a_socket_and_a_device_are_refused(bundle, monkeypatch):
    monkeypatch.chdir(bundle)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as own:
        own.bind("socket")
        with pytest.raises(BundleError, match="no regular file"):
            Bundle(bundle)


@pytest.mark.parametrize(
    ("name", "n_bytes"),
    [
        ("edgepeft.json", (16 << 20) + 1),
        ("config.json", (16 << 20) + 1),
        ("tokenizer.json", (128 << 20) + 1),
        ("tasks/mood.check.safetensors", (64 << 20) + 1),
        ("backbone.onnx", (64 << 20) + 1),
        ("tasks/mood.onnx", 1 << 30),
    ],
)
def test_a_file_that_is_larger_than_its_kind_can_be_is_refused_unread(bundle, name, n_bytes):
    os.truncate(bundle / name, n_bytes)  # sparse: no byte is written, and reading it would take a second
    with pytest.raises(BundleError, match=rf"{name.split('/')[-1]} has .* bytes, and such a file has at most"):
        Manifest.read(bundle)


def test_a_delta_may_be_as_large_as_the_weights_that_it_replaces(bundle):
    weights = bundle / "model.safetensors"
    os.truncate(weights, 200 << 20)
    os.truncate(bundle / "tasks/mood.onnx", 900 << 20)
    Manifest.read(bundle)


def test_what_is_never_read_may_have_any_size_and_a_dead_link_is_no_file(bundle):
    (bundle / "notes.bin").touch()
    os.truncate(bundle / "notes.bin", 10 << 30)
    (bundle / "dead").symlink_to("nowhere")
    Manifest.read(bundle)


def test_an_exported_task_from_elsewhere_is_bounded_too(bundle, tmp_path):
    (tmp_path / "t.onnx").touch()
    os.truncate(tmp_path / "t.onnx", 1 << 30)
    (tmp_path / "t.check.safetensors").touch()
    done = edgepeft("add", bundle, tmp_path / "t.onnx")
    assert done.returncode == 1 and "such a file has at most" in done.stderr


def renamed(bundle, old, new):
    path = bundle / "edgepeft.json"
    path.write_text(path.read_text().replace(f'"{old}": {{', f'"{new}": {{'))
    for suffix in (".onnx", ".check.safetensors"):
        (bundle / f"tasks/{old}{suffix}").rename(bundle / f"tasks/{new}{suffix}")


def test_tasks_that_would_share_a_file_are_refused_when_read(bundle):
    renamed(bundle, "pair", "mood.train")
    with pytest.raises(BundleError, match=r"'mood' and 'mood\.train' would share the file mood\.train\.onnx"):
        Manifest.read(bundle)


def test_an_older_bundles_task_of_such_a_name_still_opens_where_nothing_is_shared(bundle):
    renamed(bundle, "pair", "topic.train")
    assert "topic.train" in Manifest.read(bundle).tasks


@pytest.mark.parametrize(("name", "words"), [("mood.train", "marks training graphs"), ("MOOD", "capital letters")])
def test_new_tasks_get_no_file_of_another_on_any_file_system(name, words):
    from edgepeft.common.task_name import check_new_name

    with pytest.raises(UsageError, match=words):
        check_new_name(name, ["mood", "pair"])
    assert check_new_name("mood", ["mood", "pair"]) == "mood"  # itself, when it is replaced
