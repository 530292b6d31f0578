"""Manifests that a stranger wrote."""

import errno
import json

import pytest

from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import BundleError, UnknownName, UsageError
from edgepeft.common.task_name import check_task_name

SOUND = {
    "format": "edgepeft.bundle/1",
    "backbone": {
        "family": "bert",
        "model_type": "bert",
        "source": "somewhere",
        "sha256": {"graph": "a" * 64, "weights": "b" * 64},
        "weights_dtype": "fp32",
        "sites": {"embeddings": "embeddings"},
    },
    "tasks": {
        "news": {
            "method": "lora",
            "labels": ["x", "y"],
            "head": "linear",
            "head_reads": "mean",
            "max_length": 64,
            "trainable_parameters": 5,
            "n_bytes": 9,
            "sha256": "c" * 64,
            "check_sha256": "d" * 64,
        }
    },
    "versions": {},
}


def written(folder, **changes):
    document = json.loads(json.dumps(SOUND))
    for path, value in changes.items():
        *parents, last = path.split("__")
        where = document
        for part in parents:
            where = where[part]
        where[last] = value
    (folder / "edgepeft.json").write_text(json.dumps(document))
    return folder


def test_a_sound_manifest_is_read_and_written_again_the_same(tmp_path):
    manifest = Manifest.read(written(tmp_path))
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert manifest.task("news").n_outputs == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "edgepeft.bundle/9"}, "format"),
        ({"backbone__sha256__weights": "xyz"}, "sha256"),
        ({"tasks__news__max_length": -1}, "max_length"),
        ({"tasks__news__labels": "text"}, "labels"),
        ({"tasks__news__sha256": "../../etc/passwd"}, "sha256"),
        ({"backbone__weights_dtype": "int3"}, "weights_dtype"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(tmp_path, changes, message):
    with pytest.raises(BundleError, match=message):
        Manifest.read(written(tmp_path, **changes))


def test_a_task_name_that_leaves_the_folder_is_refused(tmp_path):
    document = json.loads(json.dumps(SOUND))
    document["tasks"]["../../evil"] = document["tasks"].pop("news")
    (tmp_path / "edgepeft.json").write_text(json.dumps(document))
    with pytest.raises(BundleError, match="evil"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "..", ""])
def test_a_hashed_file_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(BundleError, match="files"):
        Manifest.read(written(tmp_path, files={name: "a" * 64}))


def test_a_link_that_leads_out_of_the_folder_is_refused_and_one_within_is_not(tmp_path):
    folder = tmp_path / "bundle"
    (folder / "tasks").mkdir(parents=True)
    written(folder)
    (tmp_path / "secret").write_text("x")
    (folder / "real.onnx").write_text("x")
    (folder / "tasks" / "news.onnx").symlink_to("../real.onnx")
    (tmp_path / "alias").symlink_to(folder)
    assert Manifest.read(tmp_path / "alias").task("news")
    for where, target in (("tasks/news.check.safetensors", "../../secret"), ("templates", str(tmp_path))):
        (folder / where).symlink_to(target)
        with pytest.raises(BundleError, match=f"{where} is a link that leads out"):
            Manifest.read(folder)
        (folder / where).unlink()
    (folder / "tasks" / "circle").symlink_to("circle")
    assert Manifest.read(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": "edgepeft.bundle/1"'])
def test_damaged_json_is_a_bundle_error(tmp_path, content):
    (tmp_path / "edgepeft.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"edgepeft\.json"):
        Manifest.read(tmp_path)


def test_a_folder_without_manifest_is_no_bundle(tmp_path):
    with pytest.raises(UsageError, match="edgepeft export"):
        Manifest.read(tmp_path)
    with pytest.raises(UsageError, match="is not there"):
        Manifest.read(tmp_path / "nowhere")


def test_an_unknown_task_is_answered_with_the_nearest_one(tmp_path):
    with pytest.raises(UnknownName, match="Did you mean 'news'"):
        Manifest.read(written(tmp_path)).task("new")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "ä", "a\n", "x" * 101, ".."])
def test_names_that_cannot_be_files_are_refused(name):
    with pytest.raises(UsageError):
        check_task_name(name)


@pytest.mark.parametrize(
    "denied", ["edgepeft.bundle.manifest.bytes_at", "pathlib.Path.is_file"]
)  # the file; a folder above it
def test_a_bundle_that_this_user_may_not_read_is_no_traceback(tmp_path, monkeypatch, denied):
    written(tmp_path)

    def refused(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(denied, refused)
    with pytest.raises(BundleError, match=r"edgepeft\.json cannot be read \(Permission denied\).*chmod"):
        Manifest.read(tmp_path)


def test_a_copy_of_an_entry_is_of_the_kind_that_its_own_fields_say(tmp_path):
    entry = Manifest.read(written(tmp_path)).task("news")
    assert entry.task_kind is entry.task_kind  # built once
    changed = entry.model_copy(update={"labels": ("a", "b", "c")})
    assert (entry.n_outputs, changed.n_outputs) == (len(entry.labels), 3)
    assert entry.model_dump() == Manifest.read(tmp_path).task("news").model_dump()
