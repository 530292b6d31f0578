"""A bundle as a static site: the weights once, a graph a structure, the tasks' values, and a page that answers.

``site.json``, format ``edgepeft.site/1``, lists the tasks and the SHA-256 of every file; the page checks what it reads.
A browser compares each page's scripts with their hashes (Subresource Integrity) before they run; those of the worker,
which have no such attribute, the service worker compares when it stores them.

The JavaScript libraries are npm packages at pinned versions, each file with a hash that is kept here. They come from a
folder that ``npm ci`` filled: the one that is named, or one in the cache, which is filled once.
"""

import base64
import hashlib
import html
import itertools
import json
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import onnx.parser

from edgepeft import __version__
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle
from edgepeft.common.atomic import new_folder, replacing, write_atomically, write_json
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.common.progress import Stage
from edgepeft.common.resources import cache_folder, package_data, sha256_of
from edgepeft.web.structures import STRUCTURES_FOLDER, require_answerable, share_layers, write_task

FORMAT, SITE_FILE = "edgepeft.site/1", "site.json"
CHECK_LENGTH = 64  # of tokens that are compared: some texts are longer
# What tokenizers disagree about: marks, emoji of several code points, scripts without blanks, right to left, controls,
# ligatures, sigmas at a word's end, special tokens in a text, and words of more than 100 characters.
ODD_TEXTS = (
    "Crème brûlée, e\u0301clair — naïve co\u00f6perate",
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 flags 🇩🇪 and 👍🏽 thumbs",
    "今日は天気がいい。𠮷野家 한국어 문장 ไทย हिन्दी",
    "שלום עולם مرحبا بالعالم \u200fRTL\u200e mixed",
    "tab\tline\nnull\x00bell\x07nbsp\u00a0zero\u200bwidth\ufeffbom",
    "ﬁne ﬂuid ½ ² Ⅷ ℃ İstanbul ΣΑΣ ὈΔΥΣΣΕΎΣ ß ẞ",
    "[SEP] in a [MASK] text [CLS]",
    "x" * 101 + " " + "ab" * 60,
    "$5 + 3 = 8; a<b>c ^ ~ `quoted` «so» “or” …",
    "",
)
# What the page's benchmark runs between its samples: the product of edgepeft/bench/workloads/probes.py.
_GEMM = """<ir_version: 10, opset_import: ["" : 20]>
gemm (float[M,K] a, float[K,N] b) => (float[M,N] c) { c = MatMul (a, b) }"""

_SERVICE_WORKER = "sw.js"
# Nothing but the site's own files is loaded or asked, so what is typed goes nowhere. The policy of the answers is in
# site/sw.js too: a worker has none of its page.
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "style-src 'self'; img-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'"
)
_SCRIPTS = {
    "index.html": ("answers.js", "client.js", "picker.js", "page.js"),
    "verify.html": ("answers.js", "client.js", "verify.js"),
    "bench.html": ("answers.js", "client.js", "bench.js"),
}
_TUNING = {"tune.html": ("answers.js", "client.js", "store.js", "tune.js")}  # of a site that tunes
_STYLES = ("page.css", "site.css")


class Site(NamedTuple):
    """The site that was written."""

    tasks: int
    structures: int
    n_bytes: int  # in all
    weights_bytes: int
    values_bytes: int  # of all tasks
    exact_tokens: bool  # the page's tokenizer is ours, whose tokens are Python's, and not the npm library's
    untunable: dict[str, str]  # why, of tasks that a tunable site has and cannot tune


def write_site(
    bundle: Bundle,
    out: Path,
    *,
    tasks: Sequence[str] = (),
    libraries: Path | None = None,
    title: str = "edgepeft",
    tunable: bool = False,
    force: bool = False,
    stage: Stage = nullcontext,
) -> Site:
    """Write a folder that any web server can serve; it appears whole or not at all.

    ``tasks`` are all of the bundle unless some are named, ``libraries`` a ``node_modules``; None takes the cache's.
    ``tunable`` adds the graphs that classifications are tuned by in the page.
    """
    bundle.encoder()  # a damaged tokenizer is found here
    exact = _is_word_piece(json.loads((bundle.folder / "tokenizer.json").read_bytes()))
    chosen = list(dict.fromkeys(tasks)) or list(bundle.manifest.tasks)
    require_answerable(bundle, chosen, places=exact)
    packages = [ORT] if exact else [ORT, TOKENIZERS]
    with new_folder(out, force=force, read=[bundle.folder]) as new:
        with stage("libraries"):
            copy_libraries(libraries or installed(), packages, new)
        with stage("weights"):
            _ = bundle.checkpoint  # damaged weights are found here
            shutil.copyfile(bundle.weights, new / bundle.weights.name)
        shutil.copyfile(bundle.folder / "tokenizer.json", new / "tokenizer.json")
        settings = bundle.folder / "tokenizer_config.json"
        write_json(new / "tokenizer_config.json", json.loads(settings.read_bytes()) if settings.is_file() else {})
        for folder in (STRUCTURES_FOLDER, TASKS_FOLDER):
            (new / folder).mkdir()
        entries = {}
        for task in chosen:
            with stage(task):
                entries[task] = write_task(bundle, task, new, tunable=tunable)
        with stage("shared layers"):
            share_layers(bundle, new, entries)
        untunable = {task: entry["untunable"] for task, entry in entries.items() if "untunable" in entry}
        if len(untunable) == len(entries):
            listed = "; ".join(f"{task}: {reason}" for task, reason in untunable.items())
            raise UsageError(f"a page can tune no task of {bundle.folder}. {listed}. Leave --tunable out.")
        with stage("pages"):
            write_json(new / "verify.tokens.json", _token_check(bundle))
            write_atomically(new / "gemm.onnx", onnx.parser.parse_model(_GEMM).SerializeToString())
            _write_pages(new, html.escape(title), tunable=tunable)
            write_json(new / SITE_FILE, _manifest(bundle, new, title, packages, entries))
            write_service_worker(new, SITE_FILE)
        return Site(
            len(entries),
            len({entry["structure"] for entry in entries.values()}),
            sum(path.stat().st_size for path in new.rglob("*") if path.is_file()),
            (new / bundle.weights.name).stat().st_size,
            sum((new / entry["values"]).stat().st_size for entry in entries.values() if entry["values"]),
            exact,
            untunable,
        )


def _is_word_piece(tokenizer: dict[str, Any]) -> bool:
    """Whether it is a WordPiece, as ``isWordPiece`` of ``module/wordpiece.js`` says, which a test compares."""
    parts = (tokenizer.get(part) or {} for part in ("model", "normalizer", "pre_tokenizer"))
    known = ["WordPiece", "BertNormalizer", "BertPreTokenizer"]
    added = tokenizer.get("added_tokens") or []
    return [part.get("type") for part in parts] == known and not any(t["normalized"] or t["single_word"] for t in added)


def _token_check(bundle: Bundle) -> dict[str, Any]:
    """Texts and pairs with the ids that Python has of them, for the page to compare its own with."""
    usual = package_data("verify_texts.txt").read_text(encoding="utf-8").splitlines()
    singles = [Text(text) for text in (*usual, *ODD_TEXTS)]
    texts = [*singles, *map(Text._make, itertools.pairwise(text.first for text in singles))]
    encodings = bundle.encoder().encode(texts, CHECK_LENGTH).encodings
    return {"maxLength": CHECK_LENGTH, "texts": texts, "ids": [encoding.ids for encoding in encodings]}


def _manifest(
    bundle: Bundle, out: Path, title: str, packages: Sequence[str], entries: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    files = {
        path.relative_to(out).as_posix(): {"sha256": sha256_of(path), "bytes": path.stat().st_size}
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    architecture = bundle.architecture
    return {
        "format": FORMAT,
        "title": title,
        "edgepeft": __version__,
        "libraries": {file.package: file.version for file in library_files(packages)},
        "weights": bundle.weights.name,
        "model": {  # what a benchmark says of it
            "name": bundle.manifest.backbone.source,
            "n_parameters": architecture.n_parameters,
            "family": architecture.family,
            "model_type": architecture.model_type,
        },
        "padTokenId": architecture.pad_token_id,
        "tasks": entries,
        "files": files,
    }


def _write_pages(out: Path, title: str, *, tunable: bool = False) -> None:
    """Write the module, the worker and the pages, with a policy without inline scripts."""
    shutil.copytree(package_data("web/module"), out / "module")
    pages = {**_SCRIPTS, **(_TUNING if tunable else {})}
    other = {name for page, scripts in _TUNING.items() if page not in pages for name in scripts[-1:]}
    for path in sorted(package_data("web/site").iterdir()):
        if path.name not in {*_SCRIPTS, *_TUNING, _SERVICE_WORKER, *other}:
            shutil.copyfile(path, out / path.name)
    for name in ("page.css", "icon.svg", "answers.js", "picker.js"):  # as the service's page looks
        shutil.copyfile(package_data("serve") / name, out / name)
    for page, scripts in pages.items():
        head = [f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">']
        head += [f'<link rel="stylesheet" href="{name}" {_integrity(out / name)}>' for name in _STYLES]
        head += [f'<link rel="modulepreload" href="{name}" {_integrity(out / name)}>' for name in scripts[:-1]]
        head += [f'<script type="module" src="{scripts[-1]}" {_integrity(out / scripts[-1])}></script>']
        text = (package_data("web/site") / page).read_text(encoding="utf-8")
        filled = text.replace("<!-- head -->", "\n".join(head)).replace("<!-- title -->", title)
        write_atomically(out / page, filled.encode())


def write_service_worker(out: Path, manifest: str) -> None:
    """Write the service worker of this manifest: with another it is another file, which browsers take for an update."""
    text = (package_data("web/site") / _SERVICE_WORKER).read_text(encoding="utf-8")
    filled = text.replace("SHA256_OF_MANIFEST", sha256_of(out / manifest)).replace("POLICY", _POLICY)
    write_atomically(out / _SERVICE_WORKER, filled.encode())


def _integrity(path: Path) -> str:
    digest = base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
    return f'integrity="sha256-{digest}"'


ORT, TOKENIZERS = "onnxruntime-web", "@huggingface/tokenizers"
_PINS = ("package.json", "package-lock.json")


class LibraryFile(NamedTuple):
    """A file of an npm package, and the name that it has in a site."""

    package: str
    version: str
    path: str
    name: str
    sha256: str


def library_files(packages: Sequence[str]) -> list[LibraryFile]:
    """List the files that a site needs of these packages."""
    known: dict[str, dict[str, Any]] = json.loads(package_data("web/libraries.json").read_text(encoding="utf-8"))
    return [
        LibraryFile(package, known[package]["version"], file["path"], file["as"], file["sha256"])
        for package in packages
        for file in known[package]["files"]
    ]


def installed() -> Path:
    """The cache's ``node_modules``, after ``npm ci`` where it is not there yet."""
    folder = cache_folder() / "web" / sha256_of(package_data("web") / _PINS[1])[:16]
    modules = folder / "node_modules"
    if all((modules / file.package / file.path).is_file() for file in library_files([ORT, TOKENIZERS])):
        return modules
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PINS:
        with replacing(folder / name) as new:
            shutil.copyfile(package_data("web") / name, new)
    command = ["npm", "ci", "--prefix", str(folder), "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund"]
    elsewhere = (
        f"On a machine that has npm and a network, run `npm ci --ignore-scripts --omit=dev` in a copy of {folder}, "
        "and name its node_modules: --libraries FOLDER."
    )
    if shutil.which("npm") is None:
        raise EdgepeftError(f"a site needs {ORT} of npm, and npm is not installed here. {elsewhere}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no message"]
        raise EdgepeftError(f"`{' '.join(command)}` failed: {last[0]} {elsewhere}")
    return modules


def copy_libraries(modules: Path, packages: Sequence[str], out: Path) -> None:
    """Copy what a site needs of ``modules``, each file after a look at its hash."""
    (out / "lib").mkdir(exist_ok=True)
    for file in library_files(packages):
        source = modules / file.package / file.path
        fill = f"Fill it with `npm ci` by {package_data('web') / _PINS[1]}, or leave --libraries out"
        if not source.is_file():
            lacks = f"{file.package}/{file.path}"
            raise UsageError(f"{modules} is no node_modules with what a site needs: it has no {lacks}. {fill}.")
        shutil.copyfile(source, out / file.name)
        if sha256_of(out / file.name) != file.sha256:
            due = f"{file.package} {file.version}"
            raise UsageError(f"{source} is not the file of {due}, which sites are made with. {fill}.")
    if ORT in packages:
        shutil.copyfile(package_data("web/licences") / f"{ORT}.txt", out / "lib" / "ort.LICENSE.txt")
