"""What stays resident: it does not creep with the lengths asked for, and processes share the packed weights."""

import json
import mmap
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from deltas import TEXTS, random_delta, saved

from edgepeft.backbones.source import open_backbone
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import drop_pages
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.bundle import export_bundle

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads Linux's smaps")

# Activations of megabytes, in a model that runs a request in milliseconds.
WIDE = {"hidden_size": 128, "intermediate_size": 1024, "max_position_embeddings": 256}
REQUESTS = """
    import sys, json
    import numpy as np
    from edgepeft.runtime.runtime import Runtime
    def resident():  # MiB
        return int(open("/proc/self/smaps_rollup").read().split("Rss:")[1].split()[0]) / 1024
    chance = np.random.default_rng(0)
    runtime = Runtime(sys.argv[1], threads=1)
    found = {}
    for i in range(1, int(sys.argv[3]) + 1):
        lengths = chance.integers(1, 257, chance.integers(1, 9))
        ids = chance.integers(5, 60, (len(lengths), lengths.max()))
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        runtime.logits(("lora", "pfeiffer")[i % 2], inputs)
        if i in (int(sys.argv[2]), int(sys.argv[3])):
            found[i] = resident()
    print(json.dumps(list(found.values())))
"""


def started(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def wide(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    backbone = open_backbone(str(tiny("bert", **WIDE)))
    paths = [saved(random_delta(backbone, name, name), folder / name) for name in ("lora", "pfeiffer")]
    export_bundle(backbone, paths, folder / "bundle", texts=TEXTS)
    return folder / "bundle"


def creep(bundle, first, last):
    """MiB resident after so many requests of random lengths."""
    printed, _ = started(REQUESTS, bundle, first, last).communicate(timeout=1800)
    return json.loads(printed)


def test_memory_does_not_creep_with_random_lengths(wide):
    early, late = creep(wide, 60, 300)
    # 3 MiB are as much as the arena's next piece; a plan kept for each shape takes 26, an arena of exact pieces 32.
    assert late < early + 10, (early, late)


@pytest.mark.slow
def test_memory_after_ten_thousand_requests_is_that_after_a_thousand(wide):
    early, late = creep(wide, 1000, 10_000)
    assert late < 1.05 * early, (early, late)


def mapped(pid, name):
    """KiB by kind of the mappings of a file, from smaps: Rss, Shared_Clean, Private_Clean, Private_Dirty, ..."""
    total, within = {}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            within = rest.endswith(name)
        elif within and rest.endswith("kB"):
            total[head[:-1]] = total.get(head[:-1], 0) + int(rest.split()[0])
    return total


def test_two_processes_share_the_pages_of_the_packed_weights(wide):
    code = """
        import sys
        from edgepeft.runtime.runtime import Runtime
        with Runtime(sys.argv[1], threads=1) as runtime:
            print(runtime.predict("lora", ["w7 w8"])[0].label, flush=True)
            sys.stdin.readline()
    """
    processes = [started(code, wide)]
    processes[0].stdout.readline()  # the first makes the file, the second finds it
    processes.append(started(code, wide))
    processes[1].stdout.readline()
    found = [mapped(process.pid, "prepacked.bin") for process in processes]
    for process in processes:
        process.communicate("\n", timeout=60)
    packed = 4 * 2 * (4 * 128 * 128 + 2 * 128 * 1024) / 1024  # KiB: float32, layers, attention and FFN
    for kinds in found:
        assert kinds["Rss"] > packed
        assert kinds["Shared_Clean"] > 0.95 * kinds["Rss"] and kinds.get("Private_Dirty", 0) == 0


def test_whole_pages_of_a_part_of_a_mapped_file_are_dropped_and_come_back(tmp_path):
    page = mmap.PAGESIZE
    content = np.random.default_rng(0).integers(0, 256, 64 * page, np.uint8)
    (tmp_path / "mapped.bin").write_bytes(content.tobytes())
    values = np.memmap(tmp_path / "mapped.bin", np.uint8, "r")
    assert values.sum(dtype=np.int64) == content.sum(dtype=np.int64)
    assert mapped("self", "mapped.bin")["Rss"] == 64 * page / 1024
    drop_pages(tmp_path / "mapped.bin", [(8 * page + 1, 20 * page), (60 * page, 4 * page)])
    assert mapped("self", "mapped.bin")["Rss"] == (64 - 19 - 4) * page / 1024
    np.testing.assert_array_equal(values, content)


def test_scales_of_a_decoder_take_no_memory_once_a_session_is_open(tiny, tmp_path):
    sizes = {"hidden_size": 256, "intermediate_size": 2048, "head_dim": 16, "tie_word_embeddings": True}
    write_backbone(open_backbone(str(tiny("llama", **sizes, vocab_size=1100))), tmp_path, "int8")
    with Runtime(tmp_path, threads=1) as runtime:
        runtime.generator.session(None)
        opened = mapped("self", "prepacked.bin")["Rss"]
        runtime._pool._prepacked.drop_scales = lambda: None
        runtime._pool.drop(runtime.generator.session(None).decoder.shared)
        runtime.generator.session(None)
        kept = mapped("self", "prepacked.bin")["Rss"]
    scales = 2 * 3 * 2048 * 256 / 32 * 4 / 1024  # KiB: layers, matrices of a feed-forward network
    assert kept - opened > 0.8 * scales
