"""The page's own benchmark is a result as `edgepeft bench` writes it: read, reported and compared beside a board's."""

import json

import pytest
from node import run_node
from typer.testing import CliRunner

from edgepeft.bench.compare import ResultFile
from edgepeft.bundle.bundle import Bundle
from edgepeft.cli import _main
from edgepeft.common.errors import ThroughputRegression
from edgepeft.web.site import write_site

# A clock of its own, ONNX Runtime that takes about a millisecond, and a tokenizer of one row: what is tested is the document.
MEASURE = """
const { measure, WORK } = await import(MODULE + "bench.js");
let clock = 0;
performance.now = () => clock;
const wait = async () => (clock += 1 + (asked.length % 7) / 100);
class Tensor {}
const session = { run: wait, release: async () => {} };
const asked = [];
const bundle = {
  site: given.site,
  tasks: given.site.tasks,
  entry: (task) => given.site.tasks[task],
  ort: { Tensor, InferenceSession: { create: async () => session } },
  files: { read: async () => new Uint8Array() },
  encoder: { encode: () => ({ row: [{ id: 2, type: 0 }, { id: 9, type: 0 }, { id: 3, type: 0 }] }) },
  logits: (task, rows) => (asked.push([task, rows.length, rows[0].length]), wait()),
};
const device = { userAgent: "Mozilla/5.0 (X11; Linux x86_64)", threads: 2, cores: 8, notes: ["WASM SIMD"] };
return { document: await measure(bundle, { rounds: 5, device }), asked, WORK };
"""


@pytest.fixture
def measured(exported, modules, tmp_path):
    write_site(Bundle(exported), tmp_path / "site", libraries=modules)
    site = json.loads((tmp_path / "site" / "site.json").read_text())
    return run_node(MEASURE, {"site": site})


def test_a_pages_benchmark_is_read_reported_and_compared(measured, exported, tmp_path):
    document, asked = measured["document"], measured["asked"]
    paths = [tmp_path / "page.json", tmp_path / "slower.json", tmp_path / "board.json"]
    paths[0].write_text(json.dumps(document))
    result = ResultFile.open(paths[0]).document
    assert result.to_json()["host"]["system"] == "Mozilla/5.0 (X11; Linux x86_64)"
    assert result.model.name == Bundle(exported).manifest.backbone.source
    assert {(row.task, row.scenario, row.batch_size) for row in result.results} == {
        (task, *work) for task in ("mood", "pair") for work in (("offline", 8), ("single-stream", 1))
    }
    for row in result.results:
        repeats = 10 if row.scenario == "single-stream" else 1
        assert (len(row.samples_s), len(row.warmup_s), row.threads) == (5 * repeats, 2, 2)
        assert row.instances_per_minute == pytest.approx(60 * row.batch_size * len(row.samples_s) / sum(row.samples_s))
    # Two rounds of warming up and five that count, of 8 full rows (the task reads 40 tokens) and ten times one.
    assert asked.count(["mood", 8, 40]) == 2 + 5 and asked.count(["pair", 1, 16]) == 2 + 5 * 10

    slower = json.loads(json.dumps(document))
    for row in slower["results"]:
        row["samples_s"] = [3 * seconds for seconds in row["samples_s"]]
    paths[1].write_text(json.dumps(slower))
    board = json.loads(json.dumps(slower))
    board["host"] |= {"cpu": "Cortex-A72", "isa": ["neon"], "versions": {"onnxruntime": "1.31.1"}}
    paths[2].write_text(json.dumps(board))
    run, (page_file, slower_file, board_file) = CliRunner().invoke, map(str, paths)
    assert run(_main.app, ["compare", page_file, page_file]).exit_code == 0
    assert isinstance(run(_main.app, ["compare", page_file, slower_file]).exception, ThroughputRegression)
    assert "host cpu was Cortex-A72" in str(run(_main.app, ["compare", board_file, page_file]).exception)
    assert run(_main.app, ["compare", "--normalise", board_file, page_file]).exit_code == 0
    out = tmp_path / "report"
    done = run(_main.app, ["report", page_file, board_file, "--out", str(out)])
    assert done.exit_code == 0, done.output
    page = (out / "index.html").read_text()
    assert "single-stream" in page and "measured on browser" in page
