"""What `edgepeft web` writes: the weights once, graphs and values that answer, hashes of all of it, and no inline script."""

import base64
import hashlib
import json
import re
import shutil

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from deltas import bundled, random_delta
from node import run_node
from safetensors.numpy import load_file

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.cli import _main
from edgepeft.common.errors import BundleError, EdgepeftError, UnknownName, UsageError
from edgepeft.common.resources import package_data, sha256_of
from edgepeft.runtime.session import session_options
from edgepeft.web import site as web_site
from edgepeft.web.site import ORT, TOKENIZERS, installed, library_files, write_site


@pytest.fixture
def site(exported, modules, tmp_path):
    write_site(Bundle(exported), tmp_path / "site", libraries=modules, title="Texts & <b>tasks</b>")
    return tmp_path / "site"


def read(site):
    return json.loads((site / "site.json").read_text())


def test_the_manifest_has_the_hash_of_every_file(site):
    files = read(site)["files"]
    there = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert there - {*files} == {"site.json", "sw.js"}  # the first names all others, the second the first
    for name, about in files.items():
        content = (site / name).read_bytes()
        assert about == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert sha256_of(site / "site.json") in (site / "sw.js").read_text()
    assert "SHA256_OF_MANIFEST" not in (site / "sw.js").read_text()


def test_the_weights_lie_there_once_as_in_the_bundle(site, exported):
    name = read(site)["weights"]
    assert (site / name).read_bytes() == (exported / name).read_bytes()
    rest = [path.read_bytes() for path in site.rglob("*") if path.is_file() and path.name != name]
    vectors = load_file(site / name)
    largest = max(vectors.values(), key=lambda value: value.size)  # the table of words
    assert not any(largest.tobytes() in content for content in rest)


@pytest.mark.parametrize("task", ["mood", "pair", "score"])
def test_a_structure_with_the_tasks_values_gives_pytorchs_logits(site, task):
    entry = read(site)["tasks"][task]
    values, check = load_file(site / entry["values"]), load_file(site / entry["check"])
    assert len(entry["lower"]) > 0, "the table of words is in memory once"
    np.testing.assert_allclose(replayed(site, entry, {**values, **check}), check["logits"], atol=1e-4)
    for name in (*entry["lower"], entry["structure"]):
        assert {place.location for place in locations((site / name).read_bytes())} == {read(site)["weights"]}


def replayed(site, entry, known):
    """What the graphs of a task give one after the other, each fed with what is known by then."""
    options = session_options(1)  # exact in 8 bits on x86 without VNNI too
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(site))
    for name in (*entry["lower"], entry["structure"]):
        session = ort.InferenceSession((site / name).read_bytes(), options, providers=["CPUExecutionProvider"])
        given = {each.name: known[each.name] for each in session.get_inputs()}
        (output,) = session.get_outputs()
        known = {**known, output.name: session.run(None, given)[0]}
    return known["logits"]


def locations(content):
    model = onnx.load_model_from_string(content)
    for tensor in model.graph.initializer:
        found = {each.key: each.value for each in tensor.external_data}
        if found:
            yield type("Place", (), found)


def test_tasks_of_one_structure_have_one_graph_and_values_of_their_own(tiny, modules, tmp_path):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    deltas = {
        "mood": random_delta(backbone, "lora", "mood"),
        "topic": random_delta(backbone, "lora", "topic", ("a", "b", "c"), seed=1),
        "all": random_delta(backbone, "full", "all"),
    }
    bundle = bundled(deltas, backbone, tmp_path, "fp32")
    written = write_site(Bundle(bundle), tmp_path / "site", libraries=modules)
    tasks = read(tmp_path / "site")["tasks"]
    assert tasks["mood"]["structure"] == tasks["topic"]["structure"]
    assert tasks["mood"]["values"] != tasks["topic"]["values"]
    assert tasks["all"]["values"] is None  # it replaces the backbone's own: its graph has these in it
    assert (written.tasks, written.structures) == (3, 2)


def test_pages_have_no_inline_script_and_the_hashes_of_theirs(site):
    for name in ("index.html", "verify.html"):
        page = (site / name).read_text()
        policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
        assert "script-src 'self' 'wasm-unsafe-eval';" in policy and "default-src 'none'" in policy
        assert "unsafe-inline" not in policy and "connect-src 'self'" in policy
        scripts = re.findall(r"<script[^>]*>([^<]*)</script>", page)
        assert scripts == [""] and not re.search(r"<[^>]+\son\w+=|<style|\sstyle=", page)
        hashed = re.findall(r'(?:src|href)="([^"]+)" integrity="sha256-([^"]+)"', page)
        assert {file for file, _ in hashed} >= {"client.js", "page.css", "site.css"}
        for file, digest in hashed:
            assert base64.b64decode(digest) == hashlib.sha256((site / file).read_bytes()).digest()
        assert "<b>" not in page and "Texts &amp; &lt;b&gt;tasks" in page


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'\u2028"


def test_what_a_bundle_says_stands_in_a_document_that_pages_read_and_in_no_page(tiny, modules, tmp_path):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    bundle = bundled({"mood": random_delta(backbone, "lora", "mood", (EVIL, "no"))}, backbone, tmp_path, "fp32")
    write_site(Bundle(bundle), tmp_path / "site", libraries=modules, title=EVIL)
    assert read(tmp_path / "site")["tasks"]["mood"]["labels"] == [EVIL, "no"]
    texts = [path for path in (tmp_path / "site").rglob("*") if path.suffix in (".html", ".js", ".css")]
    assert len(texts) > 9 and not [path for path in texts if "<script>alert" in path.read_text()]
    pages = [path.read_text() for path in texts if path.suffix == ".html"]
    assert not [page for page in pages if re.search(r"<img|<[^>]+\son\w+\s*=", page)]


def test_no_script_makes_markup_or_code_of_a_text():
    scripts = [path for path in (package_data("web"), package_data("serve")) for path in path.rglob("*.js")]
    makes = r"(inner|outer)HTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|\beval\(|new Function"
    assert len(scripts) > 20 and not [path.name for path in scripts if re.search(makes, path.read_text())]


def test_labels_and_texts_become_texts_of_elements():
    """By a document that has no more than the pages ask of it."""
    script = """
    class Node {
      constructor(tag) { Object.assign(this, { tag, inside: [], style: {} }); }
      append(...inside) { this.inside.push(...inside); }
      setAttribute(name, value) { this[name] = value; }
    }
    globalThis.document = { createElement: (tag) => new Node(tag) };
    const { parts } = await import(MODULE + "../../serve/answers.js");
    return given.map((answer) => parts(answer, answer.read, ""));"""
    span = {"start": 0, "end": len(EVIL), "label": EVIL, "score": 1.0}
    answers = [{"error": EVIL}, {"scores": {EVIL: 1.0}}, {"labels": [EVIL], "scores": {EVIL: 1.0}}, {"text": EVIL}]
    made = run_node(script, [*answers, {"spans": [span], "read": EVIL}])

    def flat(node):
        yield node
        for each in node["inside"]:
            yield from flat(each) if isinstance(each, dict) else ({"tag": None, "textContent": each},)

    for of_answer in made:
        nodes = [node for root in of_answer for node in flat(root)]
        assert {node["tag"] for node in nodes} <= {"p", "ol", "li", "i", "span", "mark", "b", None}
        assert EVIL in [node.get("textContent") for node in nodes]


def test_a_sites_worker_is_of_its_own_folder_and_answers_nothing_beyond(site):
    """Two sites on one host: a worker's scope is the folder that its script lies in, unless a header or a caller widens it."""
    registered = re.findall(r"serviceWorker\.register\(([^)]*)\)", (site / "client.js").read_text())
    assert registered == ['"sw.js", { updateViaCache: "none" }']
    policy = re.search(r'Content-Security-Policy": "([^"]+)"', (site / "sw.js").read_text())[1]
    assert policy == re.search(r'Content-Security-Policy" content="([^"]+)"', (site / "index.html").read_text())[1]
    script = """
    const heard = {}, asked = [];
    globalThis.self = { registration: { scope: "https://host/a/" }, addEventListener: (name, call) => (heard[name] = call) };
    (0, eval)(given);
    for (const [method, url] of [["GET", "https://host/b/x"], ["GET", "https://host/"], ["POST", "https://host/a/x"], ["GET", "https://other/a/"]])
      heard.fetch({ request: { method, url }, respondWith: () => asked.push(url) });
    return asked;"""
    assert run_node(script, (site / "sw.js").read_text()) == []


def test_the_tokens_to_compare_are_those_of_python(site, exported):
    check = json.loads((site / "verify.tokens.json").read_text())
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(exported / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(check["maxLength"])
    texts = [text if pair is None else (text, pair) for text, pair in check["texts"]]
    assert check["ids"] == [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def test_some_tasks_make_a_site_of_their_own(exported, modules, tmp_path, capsys, monkeypatch):
    command = ["edgepeft", "web", str(exported), "--out", str(tmp_path / "s"), "--libraries", str(modules)]
    monkeypatch.setattr("sys.argv", [*command, "--task", "score", "--task", "mood", "--json"])
    with pytest.raises(SystemExit) as ended:
        _main.main()
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert list(read(tmp_path / "s")["tasks"]) == ["score", "mood"] and told["tasks"] == 2
    assert told["n_bytes"] == sum(path.stat().st_size for path in (tmp_path / "s").rglob("*") if path.is_file())


def test_a_site_stands_where_none_stood(exported, modules, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="--force"):
        write_site(Bundle(exported), tmp_path / "site", libraries=modules)
    with pytest.raises(UnknownName, match="mood"):
        write_site(Bundle(exported), tmp_path / "new", tasks=["moood"], libraries=modules)
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["mine.txt"] and not (tmp_path / "new").exists()


def test_damaged_files_of_the_bundle_are_named_and_nothing_is_left(bundle, modules, tmp_path):
    for name in ("tasks/mood.check.safetensors", "tasks/pair.onnx", "model.safetensors", "tokenizer.json"):
        path = bundle / name
        content = path.read_bytes()
        path.write_bytes(content[:-7])
        with pytest.raises(BundleError, match=re.escape(path.name)):
            write_site(Bundle(bundle), tmp_path / "site", libraries=modules)
        path.write_bytes(content)
        assert not (tmp_path / "site").exists()


def test_what_a_page_cannot_answer_is_refused_by_name(bundle, modules, tmp_path, monkeypatch):
    manifest = json.loads((bundle / "edgepeft.json").read_text())
    manifest["tasks"]["mood"]["source"] = "mood: {sentence1}"
    manifest["tasks"]["pair"] |= {"kind": "tokens", "chosen": {}, "labels": ["B-X", "I-X", "O"]}
    manifest["tasks"]["score"] |= {"head_reads": "text", "kind": "text", "labels": None, "regression": False}
    (bundle / "edgepeft.json").write_text(json.dumps(manifest))
    for tasks, said in (
        (["mood"], "mood is posed as text"),
        (["score"], "score writes text"),
    ):
        with pytest.raises(UsageError, match=said):
            write_site(Bundle(bundle), tmp_path / "site", tasks=tasks, libraries=modules)
    manifest["tasks"]["mood"]["source"] = None
    (bundle / "edgepeft.json").write_text(json.dumps(manifest))
    manifest["tasks"]["score"] |= {
        "head_reads": "mean",
        "kind": "regression",
        "regression": True,
        "weights_sha256": "0" * 64,
    }
    (bundle / "edgepeft.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="score has more tensors of its own"):
        write_site(Bundle(bundle), tmp_path / "site", tasks=["score"], libraries=modules)
    monkeypatch.setattr(web_site, "_is_word_piece", lambda _: False)
    with pytest.raises(UsageError, match=r"pair answers with places.*--task mood\.$"):
        write_site(Bundle(bundle), tmp_path / "site", libraries=modules)


def test_another_tokenizer_takes_the_library(exported, modules, tmp_path, monkeypatch):
    monkeypatch.setattr(web_site, "_is_word_piece", lambda _: False)
    write_site(Bundle(exported), tmp_path / "site", libraries=modules)
    assert (tmp_path / "site" / "lib" / "tokenizers.mjs").is_file()
    assert set(read(tmp_path / "site")["libraries"]) == {ORT, TOKENIZERS}


def test_libraries_are_those_that_sites_are_made_with(exported, modules, tmp_path, monkeypatch):
    def refused(words):
        with pytest.raises(EdgepeftError, match=words):
            write_site(Bundle(exported), tmp_path / "site", libraries=modules)
        assert not (tmp_path / "site").exists()

    (modules / ORT / "dist" / "ort.wasm").write_bytes(b"another version")
    refused("not the file of onnxruntime-web 1.0.0")
    shutil.rmtree(modules / ORT)
    refused("no node_modules .*onnxruntime-web.*npm ci")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EdgepeftError, match=r"npm is not installed here.*--libraries FOLDER"):
        installed()


def test_npm_fills_the_cache_once_by_the_lock_file(tmp_path, modules, monkeypatch):
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncp -r {modules} "$3/node_modules"\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:/bin:/usr/bin")
    folder = installed()
    assert installed() == folder
    assert (folder / ORT / "dist" / "ort.wasm").is_file()
    assert (folder.parent / "package-lock.json").read_bytes() == package_data("web/package-lock.json").read_bytes()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 1 and calls[0].startswith("ci ") and "--ignore-scripts" in calls[0]
    npm.write_text("#!/bin/sh\necho 'npm error no network' >&2\nexit 1\n")
    shutil.rmtree(folder)
    with pytest.raises(EdgepeftError, match="npm error no network"):
        installed()


def test_the_lock_file_pins_what_the_table_has_and_names_no_host():
    lock = json.loads(package_data("web/package-lock.json").read_text())
    declared = json.loads(package_data("web/package.json").read_text())
    assert not [name for name, about in lock["packages"].items() if "resolved" in about]
    assert all("integrity" in about for name, about in lock["packages"].items() if name)
    table = {file.package: file.version for file in library_files([ORT, TOKENIZERS])}
    assert declared["dependencies"] == table
    assert {name: lock["packages"][f"node_modules/{name}"]["version"] for name in table} == table


def test_python_and_the_page_agree_which_tokenizers_they_read():
    base = {
        "model": {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
        "normalizer": {"type": "BertNormalizer"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "added_tokens": [{"content": "[UNK]", "id": 0, "normalized": False, "single_word": False}],
    }
    others = [
        {**base, "normalizer": None},
        {**base, "model": {**base["model"], "type": "BPE"}},
        {**base, "added_tokens": []},
    ]
    others += [
        {**base, "added_tokens": [{**base["added_tokens"][0], key: True}]} for key in ("normalized", "single_word")
    ]
    script = 'const { isWordPiece } = await import(MODULE + "wordpiece.js"); return given.map(isWordPiece);'
    found = run_node(script, [base, *others])
    assert (
        found == [web_site._is_word_piece(each) for each in (base, *others)] == [True, False, False, True, False, False]
    )
