"""One prepacked file for all sessions: the same answers, one build, and every kind of damage rebuilt."""

import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import warnings
import zlib
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import suite
from deltas import TEXTS, random_delta, saved
from method_examples import examples
from once import made_once
from tiny import ragged, with_outliers
from tolerance import require_alike

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.resources import cache_folder, checksum, file_identity
from edgepeft.deploy.verify import audit
from edgepeft.device.machine import saturates_in_8_bits
from edgepeft.methods.base import methods
from edgepeft.runtime.generation import TextState
from edgepeft.runtime.placing import place
from edgepeft.runtime.prepacked import CACHE_LIMIT, hold_prepacked, prepacked_key
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.bundle import export_bundle

SIZES = {"distilbert": {"dim": 32}}
FEW = {"full", "lora", "pfeiffer", "prefix", "prompt-t"}  # of BERT's relatives


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    """Whose entries do not depend on a trial."""
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("edgepeft.runtime.prepacked._CLEARLY", 0.0)


@pytest.fixture(scope="module", params=["bert", "roberta", "electra", "distilbert"])
def every_method(request, tiny, tmp_path_factory):
    """A bundle with a random delta of each method, matrices large enough to lie outside the graph; of BERT's relatives a few."""
    if request.param == "bert":
        return request.getfixturevalue("all_methods")

    def make(folder):
        backbone = open_backbone(str(tiny(request.param, **SIZES.get(request.param, {"hidden_size": 32}))))
        deltas = [
            random_delta(backbone, name, name, settings=asdict(examples(methods()[name])[0]))
            for name in sorted(FEW - suite.WITHOUT.get(request.param, set()))
        ]
        paths = [saved(delta, folder / f"delta-{delta.card.task}") for delta in deltas]
        export_bundle(backbone, paths, folder / "bundle", texts=TEXTS)

    return made_once(tmp_path_factory, f"all-{request.param}", make) / "bundle"


def inputs_of(bundle):
    return Bundle(bundle).encoder().encode(TEXTS[:9], 40).inputs


def entry_of(bundle):
    return cache_folder() / "prepacked" / prepacked_key(Bundle(bundle))


def test_every_method_answers_as_without_the_cache(every_method):
    inputs = inputs_of(every_method)
    with Runtime(every_method, cache=False, threads=1) as plain, Runtime(every_method, threads=1) as cached:
        np.testing.assert_array_equal(plain.last_hidden_state(inputs), cached.last_hidden_state(inputs))
        for task in plain.tasks:
            found = cached.logits(task, inputs)
            require_alike(found, plain.logits(task, inputs), every_method)
            assert np.ptp(found, axis=0).max() > 1e-3
    assert (entry_of(every_method) / "prepacked.bin").stat().st_size > 0


def test_sessions_map_the_one_file_and_no_other(every_method):
    with Runtime(every_method) as runtime:
        for task in runtime.tasks:
            runtime.session(task)
        mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    assert str(entry_of(every_method) / "prepacked.bin") in mapped
    assert str(every_method / "model.safetensors") not in mapped


def test_matrices_of_the_entry_are_packed(every_method):
    tensors = json.loads((hold_prepacked(Bundle(every_method)).folder / "entry.json").read_text())
    packed = {name for name, where in tensors.items() if any(key.startswith("prepacked") for key in where)}
    matrices = [
        name
        for name, tensor in Bundle(every_method).checkpoint.tensors.items()
        if len(tensor.shape) == 2 and "embeddings." not in name and tensor.n_bytes >= 1024
    ]
    assert matrices
    assert packed >= {name for name in matrices if name in tensors}


@pytest.mark.parametrize("weights", ["fp32", "int8"])
def test_every_product_of_a_decoder_reads_a_packed_copy_of_the_entry(tiny, tmp_path, weights):
    """That with the table of words too, which the backbone's own graph looks up only."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "tie_word_embeddings": True}
    (tmp_path / "bundle").mkdir()
    write_backbone(open_backbone(str(tiny("llama", **sizes, vocab_size=1100))), tmp_path / "bundle", weights)
    bundle, rows = Bundle(tmp_path / "bundle"), {name: np.arange(5, 15).reshape(2, 5) for name in ["input_ids"]}
    rows["attention_mask"] = np.ones_like(rows["input_ids"])
    graph, entry = bundle.text_graphs_of(None).decoder, hold_prepacked(bundle)
    place(graph, bundle, entry.tensors)
    matrices = [each for each in graph.graph.initializer if len(each.dims) == 2 and not each.name.endswith(":scale")]
    of_layer = 5 if weights == "int8" else 7  # one with groups for queries, keys and values
    assert len(matrices) == 2 * of_layer + 1
    assert all(any(where.key.startswith("prepacked") for where in each.external_data) for each in matrices)
    with Runtime(bundle.folder, cache=False, threads=1) as plain, Runtime(bundle.folder, threads=1) as cached:
        found, expected = (TextState(each.generator.session(None), rows) for each in (cached, plain))
        np.testing.assert_array_equal(*(each.step(np.array([9, 14]), np.arange(2)) for each in (found, expected)))


HUGE_PAGE = 2 << 20


def huge_pages_of(file):
    """Bytes of a file that this process maps in huge pages."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(file))
        elif inside and line.startswith("FilePmdMapped:"):
            found += 1024 * int(line.split()[1])
    return found


def dropped(path):
    """The file on the disk alone, as after a restart."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@pytest.fixture
def large(tiny, tmp_path):
    """A bundle whose matrices are larger than a huge page, and the packed copies of its entry."""
    (tmp_path / "bundle").mkdir()
    sizes = {"hidden_size": 768, "intermediate_size": 768, "num_hidden_layers": 1}
    write_backbone(open_backbone(str(tiny("bert", **sizes))), tmp_path / "bundle")
    hold_prepacked(Bundle(tmp_path / "bundle")).close()
    tensors = json.loads((entry_of(tmp_path / "bundle") / "entry.json").read_text()).values()
    copies = [where[key].split("|")[1].split(";") for where in tensors for key in where if "prepacked" in key]
    return tmp_path / "bundle", [(int(offset), int(length)) for offset, length, *_ in copies]


def test_large_matrices_begin_at_huge_pages_and_overlap_nothing(large):
    bundle, copies = large
    begins = [offset for offset, length in copies if length >= HUGE_PAGE]
    assert len(begins) >= 6
    assert all(offset % HUGE_PAGE == 0 for offset in begins)
    assert all(offset + length <= later for (offset, length), (later, _) in pairwise(sorted(copies)))
    inputs = inputs_of(bundle)
    with Runtime(bundle, cache=False, threads=1) as plain, Runtime(bundle, threads=1) as cached:
        np.testing.assert_array_equal(plain.last_hidden_state(inputs), cached.last_hidden_state(inputs))


@pytest.mark.skipif(sys.platform != "linux", reason="pages of Linux")
def test_large_matrices_are_mapped_in_huge_pages_where_the_file_system_can(large, tmp_path):
    bundle, copies = large
    (tmp_path / "plain").write_bytes(bytes(8 * HUGE_PAGE))
    with dropped(tmp_path / "plain").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_HUGEPAGE)
        assert not any(mapped[::4096])
        if huge_pages_of(tmp_path / "plain") < 8 * HUGE_PAGE:
            pytest.skip("this kernel keeps files of this folder in small pages")
    dropped(entry_of(bundle) / "prepacked.bin")
    with Runtime(bundle, threads=1) as runtime:
        runtime.last_hidden_state(inputs_of(bundle))
        found = huge_pages_of(entry_of(bundle) / "prepacked.bin")
    assert found >= 0.8 * sum(length // HUGE_PAGE * HUGE_PAGE for _, length in copies)


@pytest.mark.parametrize("name", ["prepacked.bin", "entry.json", "checksums.json", "in-use"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "a folder"])
def test_a_damaged_entry_is_built_again(exported, name, damage):
    Runtime(exported).predict("mood", TEXTS[:2])
    path = entry_of(exported) / name
    content = path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "altered":
        path.write_bytes(content[:-5] + b"!!!!!")
    elif damage == "a folder":
        path.mkdir()
    with nullcontext() if name == "in-use" else pytest.warns(RuntimeWarning, match="made again"):
        found = Runtime(exported).predict("mood", TEXTS[:2])
    assert found == Runtime(exported, cache=False).predict("mood", TEXTS[:2])


@pytest.fixture
def flipped(exported):
    """The bundle, and a function that turns one bit of a file of its entry and leaves size and times as they were."""

    def flip(name, place):
        path = entry_of(exported) / name
        content, times = bytearray(path.read_bytes()), path.stat()
        content[place] ^= 1
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    Runtime(exported).predict("mood", TEXTS[:2])
    return exported, flip


@pytest.mark.parametrize("place", [0, 777, -4097, -1])
def test_any_bit_that_a_disk_lost_is_found_before_anything_is_answered_by_it(flipped, place):
    bundle, flip = flipped
    sound = (entry_of(bundle) / "prepacked.bin").read_bytes()
    flip("prepacked.bin", place)
    with pytest.warns(RuntimeWarning, match="not what was written there, and are made again") as said:
        found = Runtime(bundle).predict("mood", TEXTS[:2])
    assert len(said) == 1
    assert found == Runtime(bundle, cache=False).predict("mood", TEXTS[:2])
    assert (entry_of(bundle) / "prepacked.bin").read_bytes() == sound


def test_a_digit_of_where_a_tensor_lies_is_checked_too(flipped):
    bundle, flip = flipped
    content = (entry_of(bundle) / "entry.json").read_bytes()
    flip("entry.json", content.index(b'"offset": "') + len(b'"offset": "'))  # another digit, and still JSON
    json.loads((entry_of(bundle) / "entry.json").read_bytes())
    with pytest.warns(RuntimeWarning, match="made again"):
        Runtime(bundle).session("mood")
    assert (entry_of(bundle) / "entry.json").read_bytes() == content


def test_verify_looks_at_the_copy_says_so_once_and_makes_it_again(flipped):
    bundle, flip = flipped
    assert not any(finding.problem for finding in audit(bundle))
    flip("prepacked.bin", 4096)
    backbone, *others = audit(bundle)
    assert "were not what was written there" in backbone.problem
    assert not any(finding.problem for finding in (*others, *audit(bundle)))


def test_weights_that_are_read_beside_the_copy_are_hashed_by_the_process_that_reads_them(bundle):
    Runtime(bundle).predict("mood", TEXTS[:1])
    path = bundle / "model.safetensors"
    content, seen = bytearray(path.read_bytes()), entry_of(bundle) / "seen.json"
    content[-1] ^= 1
    path.write_bytes(content)
    seen.write_text(json.dumps([file_identity(path)]))  # a disk that loses a bit changes no time
    with pytest.raises(BundleError, match=r"model\.safetensors is not the file"):  # its biases are in no copy
        Runtime(bundle).predict("mood", TEXTS[:1])


def test_a_checksum_is_zlibs_of_each_16_mib(tmp_path):
    content = np.random.default_rng(0).bytes((16 << 20) + 5)
    (tmp_path / "file").write_bytes(content)
    assert checksum(tmp_path / "file") == f"{zlib.crc32(content[: 16 << 20]):08x}{zlib.crc32(content[16 << 20 :]):08x}"
    assert checksum(tmp_path / "file", 7) == f"{zlib.crc32(content[:7]):08x}"


@pytest.mark.parametrize("place", ["cpu_model", "isa_flags", "weights", "graph", "onnxruntime"])
def test_another_machine_version_or_model_has_an_entry_of_its_own(exported, monkeypatch, place):
    from edgepeft.runtime import prepacked

    bundle = Bundle(exported)
    before = prepacked_key(bundle)
    if place == "onnxruntime":
        monkeypatch.setattr(prepacked.ort, "__version__", "0.0")
    elif place in ("weights", "graph"):
        hashes = bundle.manifest.backbone.sha256.model_copy(update={place: "0" * 64})
        backbone = bundle.manifest.backbone.model_copy(update={"sha256": hashes})
        bundle.manifest = bundle.manifest.model_copy(update={"backbone": backbone})
    else:
        monkeypatch.setattr(prepacked, place, lambda: ("other",))
    assert prepacked_key(bundle) != before


def test_a_cache_that_cannot_be_written_is_done_without_and_said_once(exported, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "file"))
    with Runtime(exported) as runtime:
        with pytest.warns(RuntimeWarning, match="not shared") as said:
            found = runtime.predict("mood", TEXTS[:2])
            runtime.predict("score", TEXTS[:2])
        assert len(said) == 1
    assert found == Runtime(exported, cache=False).predict("mood", TEXTS[:2])


def test_a_full_disk_is_done_without(exported, monkeypatch):
    from edgepeft.runtime import prepacked

    monkeypatch.setattr(prepacked.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 5})())
    with pytest.warns(RuntimeWarning, match="no space left"):
        Runtime(exported).session("mood")
    assert not entry_of(exported).exists()


def test_packed_weights_that_give_other_values_are_not_used(exported, monkeypatch):
    from edgepeft.runtime import prepacked

    answer = prepacked._answer
    signs = iter((1, -1))
    monkeypatch.setattr(prepacked, "_answer", lambda s: {n: next(signs) * v for n, v in [*answer(s).items()][:1]})
    with pytest.warns(RuntimeWarning, match="another last_hidden_state"):
        Runtime(exported).session("mood")
    assert not entry_of(exported).exists()


_RACES = ["packed", "one_row"] * 5 + ["one_row", "joined"] * 5  # whose turn it is in the trial


@pytest.mark.parametrize(
    "costs",
    [
        {"packed": 1.0, "one_row": 0.9, "joined": 0.89},
        {"packed": 1.0, "one_row": 0.9, "joined": 0.8},
        {"packed": 0.9, "one_row": 1.0, "joined": 1.0},
        {"packed": 0.9, "one_row": 1.0, "joined": 0.9},
        {"packed": 0.99, "one_row": 1.0, "joined": 1.1},
    ],
)
@pytest.mark.parametrize("slowed", [0, 1])
def test_a_row_alone_runs_by_the_form_that_was_quicker_on_this_processor(exported, monkeypatch, costs, slowed):
    from edgepeft.runtime import prepacked, runtime

    clock, sessions, answer, rewrite = [0.0], [], prepacked._answer, runtime.for_one_row

    def answered(session, *length):
        if length:  # in the trial, by turns
            turn = len(sessions)
            sessions.append(session)
            clock[0] += costs[_RACES[turn]] / 10
            clock[0] += turn % 2 == slowed and turn % 10 < 6  # another process has the cores in three of five rounds
        return answer(session, *length)

    monkeypatch.setattr(prepacked, "_answer", answered)
    monkeypatch.setattr(prepacked, "_CLEARLY", 0.97)
    monkeypatch.setattr(prepacked, "perf_counter", lambda: clock[0])
    expected = Runtime(exported, cache=False).predict("mood", "w5 w7 w9")
    quickest = min(costs["one_row"], costs["joined"]) if costs["joined"] < 0.97 * costs["one_row"] else costs["one_row"]
    alone = costs["packed"] >= 0.97 * quickest
    joined = alone and quickest == costs["joined"]
    for _ in range(2):  # the second time as it is kept
        asked = []
        monkeypatch.setattr(runtime, "for_one_row", lambda model, asked=asked: asked.append(1) or rewrite(model))
        with Runtime(exported) as opened:
            (got,) = opened.predict("mood", "w5 w7 w9")
        assert bool(asked) == alone
        assert got.label == expected[0].label and got.scores == pytest.approx(expected[0].scores, abs=1e-5)
    assert len(sessions) == 20
    assert all(len({*map(id, sessions[race : race + 2])}) == 2 for race in (0, 10))
    places = json.loads((entry_of(exported) / "entry.json").read_bytes())
    assert sum("+" in name for name in places) == (2 if joined else 0)  # layers; biases are too small for the file
    parts = [where for name, where in places.items() if "+" not in name]
    copies = [copy.split(";")[:2] for where in parts for copy in where.get("prepacked_0", "").split("|")[1:]]
    ends = [int(where["offset"]) + int(where["length"]) for where in parts] + [sum(map(int, copy)) for copy in copies]
    assert ((entry_of(exported) / "prepacked.bin").stat().st_size > max(ends)) == joined


@pytest.mark.parametrize("again", ["without", "not at all"])
def test_joined_matrices_of_an_entry_that_is_gone_are_made_for_the_session(exported, monkeypatch, again):
    from edgepeft.runtime import prepacked, session_pool

    (expected,) = Runtime(exported, cache=False).predict("mood", "w5 w7 w9")
    ways = iter([True, False])
    monkeypatch.setattr(prepacked, "_tried", lambda *_: {"one_row": True, "joined": next(ways), "ms": {}})
    structure_and_values = session_pool.structure_and_values

    def emptied(model):  # between what the entry said and what is placed
        assert any("+" in each.name for each in model.graph.initializer)
        shutil.rmtree(cache_folder())
        if again == "not at all":
            monkeypatch.setattr(prepacked.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 5})())
        return structure_and_values(model)

    monkeypatch.setattr(session_pool, "structure_and_values", emptied)
    full = pytest.warns(RuntimeWarning, match="no space left") if again == "not at all" else nullcontext()
    with full, Runtime(exported) as runtime:
        (got,) = runtime.predict("mood", "w5 w7 w9")
    np.testing.assert_allclose(got.logits, expected.logits, rtol=0, atol=1e-5)
    assert len([*ways]) == (1 if again == "not at all" else 0)


@pytest.mark.skipif(saturates_in_8_bits(), reason="products of uint8 and int8 overflow on this processor")
@pytest.mark.parametrize("quicker", [True, False])
def test_in_8_bits_attention_is_one_operator_where_it_was_quicker_on_this_processor(
    tiny, tmp_path, monkeypatch, quicker
):
    from edgepeft.runtime import prepacked, session_pool

    write_backbone(open_backbone(str(with_outliers(tiny("bert", vocab_size=1100), tmp_path))), tmp_path, "int8")
    inputs = ragged(1, 9, {"vocab_size": 1100, "pad_token_id": 0})
    expected = Runtime(tmp_path, cache=False).last_hidden_state(inputs)
    costs, clock, asked, opened = {"packed": 1, "one_row": 1, "joined": 0.9 if quicker else 0.99}, [0.0], [], []
    answer, open_session = prepacked._answer, session_pool.open_session

    def answered(session, *length):
        if length:  # in the trial, by turns
            clock[0] += costs[_RACES[len(asked)]] / 10
            asked.append(session)
        return answer(session, *length)

    def opening(model, *rest, **named):
        opened.append([node.op_type for node in model.graph.node])
        return open_session(model, *rest, **named)

    monkeypatch.setattr(prepacked, "_answer", answered)
    monkeypatch.setattr(prepacked, "_CLEARLY", 0.97)
    monkeypatch.setattr(prepacked, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(session_pool, "open_session", opening)
    with Runtime(tmp_path) as runtime:
        found = runtime.last_hidden_state(inputs)
    assert len(asked) == 20
    assert [operators.count("QAttention") for operators in opened] == [2 if quicker else 0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * np.abs(expected).max())  # a byte may turn
    places = json.loads((entry_of(tmp_path) / "entry.json").read_bytes())
    packed = [place["prepacked_0"] for name, place in places.items() if "+" in name]
    assert len(packed) == (2 if quicker else 0) and all(place.startswith("QAttention") for place in packed)
    with Runtime(tmp_path) as runtime:  # as it is kept
        np.testing.assert_array_equal(runtime.last_hidden_state(inputs), found)


def test_without_the_cache_nothing_is_written(exported):
    Runtime(exported, cache=False).predict("mood", TEXTS[:2])
    assert not cache_folder().exists()


def test_a_limit_that_is_no_number_is_named(exported, monkeypatch):
    monkeypatch.setenv(CACHE_LIMIT, "much")
    with pytest.raises(UsageError, match=r"EDGEPEFT_CACHE_GIB.*'much'"):
        Runtime(exported).session("mood")


@pytest.mark.parametrize("joined", [True, False])
def test_weights_are_hashed_once_and_again_when_they_change(tiny, tmp_path, monkeypatch, joined):
    from edgepeft.bundle import bundle as module
    from edgepeft.runtime import prepacked

    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prepacked, "_tried", lambda *_: {"one_row": True, "joined": joined, "ms": {}})
    (bundle := tmp_path / "bundle").mkdir()
    wide = tiny("bert", hidden_size=256, intermediate_size=256)  # as real ones: nothing is read beside the copy
    write_backbone(open_backbone(str(wide)), bundle)
    inputs = inputs_of(bundle)
    hashed = []
    plain = module.sha256_of
    monkeypatch.setattr(module, "sha256_of", lambda path: hashed.append(path.name) or plain(path))
    one = {name: values[:1, : int(inputs["attention_mask"][0].sum())] for name, values in inputs.items()}
    for each in (inputs, one, one):
        Runtime(bundle).last_hidden_state(each)
    assert hashed.count("model.safetensors") == 1
    path = bundle / "model.safetensors"
    content, times = path.read_bytes(), path.stat()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as old as it was: the kernel knows better
    with pytest.raises(BundleError, match=r"model\.safetensors"):
        Runtime(bundle).last_hidden_state(inputs)


def test_processes_that_start_together_build_one_entry_and_agree(exported, tmp_path):
    code = f"""
        from pathlib import Path
        from edgepeft.backbones.tokens import Text
        from edgepeft.runtime.runtime import Runtime
        with Runtime(Path({str(exported)!r}), threads=1) as runtime:
            print(runtime.predict("mood", [Text("w7 w8")]))
    """
    running = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    printed = {process.communicate(timeout=120)[0] for process in running}
    assert len(printed) == 1 and "mood" in printed.pop()
    assert sorted(path.name for path in (cache_folder() / "prepacked").iterdir()) == sorted(
        ["lock", prepacked_key(Bundle(exported))]
    )


@contextmanager
def as_nobody():
    """Root writes anywhere: for a moment, this process is a user who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_cache_that_is_emptied_while_a_program_runs_is_filled_again(exported):
    with Runtime(exported, cache=False) as plain, Runtime(exported) as runtime:
        runtime.session(None)
        shutil.rmtree(entry_of(exported).parent)
        assert runtime.predict("mood", TEXTS[:2]) == plain.predict("mood", TEXTS[:2])
    assert (entry_of(exported) / "prepacked.bin").is_file()


@pytest.fixture
def read_only_cache(exported, monkeypatch):
    """A function that makes the cache (and a copy of the bundle beside it) readable and no more, to anybody."""
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    shutil.copytree(exported, folder / "bundle")
    (folder / "cache").mkdir()
    monkeypatch.setenv("EDGEPEFT_CACHE", str(folder / "cache"))

    def close():
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        return folder / "bundle"

    yield close
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(folder)


def test_an_entry_in_a_folder_that_is_read_only_is_used_as_it_is(exported, read_only_cache):
    expected = Runtime(exported).predict("mood", TEXTS[:2])
    bundle, packed = read_only_cache(), entry_of(exported) / "prepacked.bin"
    assert packed.is_file()
    with as_nobody(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with Runtime(bundle) as runtime:
            assert runtime.predict("mood", TEXTS[:2]) == expected
            maps = Path("/proc/self/maps")
            assert not maps.exists() or str(packed) in maps.read_text()
        assert [finding.problem for finding in audit(bundle)] == [""] * 4


def test_an_empty_cache_that_is_read_only_is_done_without_and_said(exported, read_only_cache):
    bundle = read_only_cache()
    with as_nobody(), Runtime(bundle) as runtime, pytest.warns(RuntimeWarning, match="not shared between tasks"):
        found = runtime.predict("mood", TEXTS[:2])
    assert found == Runtime(exported, cache=False).predict("mood", TEXTS[:2])
    assert not any(cache_folder().iterdir())


@pytest.mark.parametrize("weights", ["int8", "int4"])  # a packed 4-bit matrix has an odd size of its own
def test_a_t5_in_fewer_bits_shares_its_weights_whatever_the_size_of_its_table_of_distances(tiny, tmp_path, weights):
    folder = tiny("t5", relative_attention_max_distance=128)  # 257 distances of 4 heads: no whole lines of the cache
    write_backbone(open_backbone(str(folder)), tmp_path, weights)
    assert any("prepacked_0" in where for where in hold_prepacked(Bundle(tmp_path)).tensors.values())
