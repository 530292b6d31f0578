"""A site in Chromium: answers and check files, without a network, updates, damaged files, keyboard, both sizes."""

import functools
import http.server
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from deltas import bundled, random_delta

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.resources import sha256_of
from edgepeft.runtime.runtime import Runtime
from edgepeft.web.site import write_site

MODULES = Path(__file__).parents[2] / "build" / "web" / "node_modules"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and (MODULES / "playwright-core").is_dir()),
        reason="needs chromium and npm's packages: make test-javascript",
    ),
]


HELD: dict[str, threading.Event] = {}  # by a path's end: what its answer waits for


class Quiet(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        for end, released in HELD.items():
            if self.path.endswith(end):
                released.wait(300)
        super().do_GET()

    def log_message(self, *_):
        pass


class Served:
    """A folder over HTTP, and a browser with a profile of its own."""

    def __init__(self, folder, profile):
        self.profile = profile
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://localhost:{self.server.server_port}/"

    def steps(self, *steps):
        given = {"modules": str(MODULES), "chromium": shutil.which("chromium"), "profile": str(self.profile)}
        given |= {"url": self.url, "steps": steps}
        command = ["node", str(Path(__file__).with_name("browser.mjs"))]
        done = subprocess.run(
            command, input=json.dumps(given), capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)


@pytest.fixture
def worded(bundle):
    return with_words(bundle)


def with_words(bundle):
    """The bundle with BERT's own way of tokenizing, which a page knows by itself."""
    path = bundle / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer |= {"normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}}
    tokenizer["normalizer"] |= {"strip_accents": None, "lowercase": True}
    tokenizer |= {"pre_tokenizer": {"type": "BertPreTokenizer"}}
    tokenizer["model"] |= {"type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    path.write_text(json.dumps(tokenizer))
    manifest = json.loads((bundle / "edgepeft.json").read_text())
    if "tokenizer.json" in manifest["files"]:
        manifest["files"]["tokenizer.json"] = sha256_of(path)
    (bundle / "edgepeft.json").write_text(json.dumps(manifest))
    return bundle


@pytest.fixture
def served(tmp_path):
    one = Served(str(tmp_path / "site"), tmp_path / "profile")
    yield one
    one.server.shutdown()


def test_a_page_answers_as_the_bundle_with_and_without_a_network(worded, tmp_path, served):
    write_site(Bundle(worded), tmp_path / "site", libraries=MODULES)
    row = {"text": "w7 w9 w12 w30", "second": "w8 w8"}
    opened, facts, answers, asked, errors, _, again, later, isolated = served.steps(
        ["open"], ["facts"], ["ask", row], ["asked"], ["errors"], ["offline", True], ["open"], ["ask", row], ["facts"]
    )
    assert opened == again == "" and errors == []
    assert facts["without a network"] == isolated["without a network"] == "works"
    assert asked == [served.url.rstrip("/")], "nobody but the site is asked"
    with Runtime(worded, cache=False) as runtime:
        expected = {"mood": runtime.predict("mood", row["text"])[0], "score": runtime.predict("score", row["text"])[0]}
        expected["pair"] = runtime.predict("pair", [(row["text"], row["second"])])[0]
    assert answers == later
    of_task = {answer.split()[0]: answer for answer in answers}
    assert f"{expected['score'].score:.3f}" in of_task["score"]
    for task in ("mood", "pair"):
        for label, share in expected[task].scores.items():
            assert f"{label}\n{100 * share:.1f} %" in of_task[task]


@pytest.mark.parametrize("tokenizer", ["own", "library"])
def test_check_files_are_replayed_in_the_browser(worded, exported, tmp_path, served, tokenizer):
    write_site(Bundle(worded if tokenizer == "own" else exported), tmp_path / "site", libraries=MODULES)
    (found,) = served.steps(["verify"])
    of_task = {row[0]: row for row in found["rows"]}
    for task in ("mood", "pair", "score"):
        assert float(of_task[task][2].split()[0]) <= 1e-4 and of_task[task][4] == "passed"
    if tokenizer == "own":
        assert of_task["tokens"][3] == "0" and found["verdict"] == "All checks passed."


def test_an_update_comes_with_the_manifest_and_takes_what_is_old_away(worded, tmp_path, served):
    write_site(Bundle(worded), tmp_path / "site", tasks=["mood", "score"], libraries=MODULES)
    _, _, before = served.steps(["open"], ["facts"], ["caches"])
    (old,) = before
    write_site(Bundle(worded), tmp_path / "site", tasks=["mood", "pair"], libraries=MODULES, force=True)
    _, told, _, answers, after = served.steps(["open"], ["updated"], ["open"], ["ask", {"text": "w7 w9"}], ["caches"])
    assert told.startswith("A new version")
    assert [answer.split()[0] for answer in answers] == ["mood", "pair"]
    (new,) = after
    assert new != old and "/tasks/pair.safetensors" in after[new]
    assert "/tasks/score.safetensors" in before[old] and "/tasks/score.safetensors" not in after[new]
    assert "/model.safetensors" in after[new], "what has not changed is kept"


def test_damaged_files_are_refused(worded, tmp_path, served):
    write_site(Bundle(worded), tmp_path / "site", libraries=MODULES)
    weights = tmp_path / "site" / "model.safetensors"
    content = weights.read_bytes()
    for damaged in (content[:-100], content[:-100] + b"x" + content[-99:]):
        weights.write_bytes(damaged)
        (said,) = served.steps(["open"])
        assert "model.safetensors is not the file that the site was made with" in said
    weights.write_bytes(content)
    assert served.steps(["open"]) == [""], "what was kept of the damaged file is forgotten"
    script = tmp_path / "site" / "page.js"
    shutil.rmtree(served.profile)
    script.write_text(script.read_text() + "\n")
    with pytest.raises(AssertionError, match="Timeout"):
        served.steps(["open"])


def test_by_keyboard_alone_in_both_sizes_dark_and_light(worded, tmp_path, served):
    write_site(Bundle(worded), tmp_path / "site", libraries=MODULES, title="A site with a rather long name")
    _, typed, *looks = served.steps(
        ["open"],
        ["keyboard", "w7 w9 w11"],
        *(["look", *size, scheme] for size in ((1280, 900), (390, 844)) for scheme in ("light", "dark")),
        ["open", "verify.html"],
        ["look", 390, 844, "dark"],
    )
    assert typed["answers"][0].startswith("mood") and {"text", "mood", "go"} <= {*typed["seen"]}
    fits = [look[0] for look in looks if isinstance(look, list)]
    assert fits == [True] * 5
    assert looks[0][1] != looks[1][1], "dark is another colour"


def test_a_full_disk_leaves_a_page_that_answers_and_the_version_that_was_kept(worded, tmp_path, served):
    write_site(Bundle(worded), tmp_path / "site", tasks=["mood"], libraries=MODULES)
    row = {"text": "w7 w9"}
    steps = (["quota", 1_000_000], ["open"], ["facts"], ["ask", row], ["caches"], ["quota", None], ["open"], ["facts"])
    _, opened, full, answers, stored, _, again, kept, before = served.steps(*steps, ["caches"])
    assert opened == again == "" and answers[0].startswith("mood")
    assert full["without a network"].startswith("not kept: no room") and stored == {}
    assert kept["without a network"] == "works"
    write_site(Bundle(worded), tmp_path / "site", tasks=["mood", "pair"], libraries=MODULES, force=True)
    steps = (["quota", 1_000_000], ["open"], ["looked"], ["caches"], ["offline", True], ["open"], ["ask", row])
    _, _, _, after, _, opened, answers = served.steps(*steps)
    assert after == before, "half of an update takes no room, and nothing of what was kept goes"
    assert opened == "" and [answer.split()[0] for answer in answers] == ["mood"]


@pytest.mark.parametrize("closed", ["tab", "browser"])
def test_what_is_closed_during_an_update_leaves_a_whole_site(worded, tmp_path, served, monkeypatch, closed):
    write_site(Bundle(worded), tmp_path / "site", tasks=["mood"], libraries=MODULES)
    _, _, (old,) = served.steps(["open"], ["facts"], ["caches"])
    write_site(Bundle(worded), tmp_path / "site", tasks=["mood", "pair"], libraries=MODULES, force=True)
    released = threading.Event()
    monkeypatch.setitem(HELD, "/tasks/pair.safetensors", released)
    row = {"text": "w7 w9"}
    if closed == "tab":
        _, opened, answers, there = served.steps(["leave"], ["open"], ["ask", row], ["caches"])
        assert opened == "" and [answer.split()[0] for answer in answers] == ["mood"], "the old one, whole"
        assert old in there
    else:
        served.steps(["leave"])
    released.set()
    _, _, opened, answers, after = served.steps(["open"], ["looked"], ["open"], ["ask", row], ["caches"])
    assert opened == "" and [answer.split()[0] for answer in answers] == ["mood", "pair"]
    (new,) = after
    assert new != old and "/tasks/pair.safetensors" in after[new]


EVIL = "</script><script>harmed=1</script><img src=x onerror=harmed=1><svg onload=harmed=1>\"'\u2028"


def test_a_hostile_bundle_makes_no_markup_runs_nothing_and_holds_no_page_but_its_own(tiny, tmp_path, served):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    delta = random_delta(backbone, "lora", "mood", (EVIL, "no"))
    bundle = with_words(bundled({"mood": delta}, backbone, tmp_path, "fp32"))
    write_site(Bundle(bundle), tmp_path / "site" / "one", libraries=MODULES, title=EVIL)
    beside = tmp_path / "site" / "beside.html"
    beside.write_text("<title>of another owner</title>")
    opened, answers, harm, checked, harm_of_check, errors, asked, other = served.steps(
        ["open", "one/"], ["ask", {"text": EVIL}], ["harm"], ["visit", "one/verify.html"], ["harm"], ["errors"], ["asked"],
        ["visit", "beside.html"],
    )  # fmt: skip
    assert opened == "" and len(answers) == 1 and EVIL in answers[0], "the label, letter by letter"
    nothing = {"ran": False, "images": 0, "inline": 0}
    assert {**harm, **nothing} == harm and {**harm_of_check, **nothing} == harm_of_check
    assert harm["title"] == checked["title"].removesuffix(": check") == EVIL
    assert errors == [] and asked == [served.url.rstrip("/")]
    assert checked["controlled"] and not other["controlled"], "its worker stays in its folder"
    assert other["scopes"] == [f"{served.url}one/"]
