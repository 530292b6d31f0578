"""What is fuzzed: each target takes bytes and says how it ended; anything but an expected error is a finding.

``altered-*`` leave the manifest's hashes as they were: each change must be noticed.  ``delta`` is the attacker's case, whose
hashes are right.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edgepeft.common.errors import EdgepeftError

Target = Callable[[bytes], str]
HERE = Path(__file__).resolve().parent

ROW = {"input_ids": [[2, 5, 6, 3]], "attention_mask": [[1, 1, 1, 1]], "token_type_ids": [[0, 0, 0, 0]]}


class WrongAnswer(Exception):
    """Altered bytes were taken for sound ones."""


def manifest(bundle: Path) -> tuple[list[bytes], Target]:
    """``edgepeft.json``: read, and every task looked up."""
    from edgepeft.bundle.bundle import Bundle

    path = bundle / "edgepeft.json"

    def target(data: bytes) -> str:
        path.write_bytes(data)
        try:
            found = Bundle(bundle)
            for task in found.manifest.tasks:
                found.current(task, ".onnx").relative_to(bundle)  # ValueError: it left the folder
                found.delta_graph(task)
        except EdgepeftError:
            return "refused"
        return "read"

    return [path.read_bytes()], target


def altered(bundle: Path, name: str) -> tuple[list[bytes], Target]:
    """A file of the bundle with other bytes than the manifest names: must be refused, whatever they are."""
    from edgepeft.runtime.runtime import Runtime

    path = bundle / name
    sound = path.read_bytes()
    with Runtime(bundle, cache=False, threads=1) as runtime:
        expected = {task: runtime.predict(task, ["w5 w6 w7"])[0].logits for task in runtime.tasks}

    def target(data: bytes) -> str:
        if path.read_bytes() != data:
            path.write_bytes(data)
        outcome = "unread"
        for task, logits in expected.items():
            try:  # some files are read when a bundle is opened, others with a task
                with Runtime(bundle, cache=False, threads=1) as runtime:
                    found = runtime.predict(task, ["w5 w6 w7"])[0].logits
            except EdgepeftError:
                outcome = "refused"
                continue
            if data != sound and found != logits:
                raise WrongAnswer(f"{name}: {task} gave {found} in place of {logits}")
        return outcome

    return [sound], target


def delta(bundle: Path) -> tuple[list[bytes], Target]:
    """A delta graph whose hash is right: read, checked, spliced (ONNX Runtime is not asked, see ``session``)."""
    from edgepeft.bundle.bundle import Bundle

    return _with_right_hash(bundle, lambda: Bundle(bundle).graph("mood"))


def session(bundle: Path) -> tuple[list[bytes], Target]:
    """The same, opened and run by ONNX Runtime."""
    import numpy as np

    from edgepeft.runtime.runtime import Runtime

    inputs = {name: np.array(values, np.int64) for name, values in ROW.items()}

    def answer() -> None:
        with Runtime(bundle, cache=False, threads=1) as runtime:
            runtime.logits("mood", inputs)

    return _with_right_hash(bundle, answer)


def backbone(bundle: Path) -> tuple[list[bytes], Target]:
    """The backbone's graph, with the right hash: opened by itself, and run."""
    return _with_right_hash(bundle, lambda: _states(bundle), "backbone.onnx", ("backbone", "sha256", "graph"))


def training(bundle: Path) -> tuple[list[bytes], Target]:
    """A delta graph whose hash is right: differentiated and opened as tuning does."""
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.graph.gradient.training import training_facts
    from edgepeft.tuning.activation_cache import training_graph
    from edgepeft.tuning.step import TrainingStep
    from edgepeft.tuning.target import deployed_graph

    def opened() -> None:
        found = Bundle(bundle)
        delta = found.delta_graph("mood")
        facts = training_facts(delta)
        deployed = deployed_graph(delta, facts, found)
        graph, _ = training_graph(deployed, facts, found.checkpoint, prefix_cache=True)
        TrainingStep(graph, facts, bundle, 1)

    return _with_right_hash(bundle, opened)


def check(bundle: Path) -> tuple[list[bytes], Target]:
    """A check file with the right hash: replayed, as ``edgepeft verify`` does."""
    from edgepeft.deploy.verify import audit

    def replayed() -> None:
        if wrong := [finding.problem for finding in audit(bundle) if finding.problem]:
            raise EdgepeftError(wrong[0])

    return _with_right_hash(bundle, replayed, "tasks/mood.check.safetensors", ("tasks", "mood", "check_sha256"))


def tokenizer(bundle: Path) -> tuple[list[bytes], Target]:
    """A tokenizer with the right hash: opened, and asked for a text and a pair."""
    from edgepeft.backbones.tokens import Text
    from edgepeft.bundle.bundle import Bundle

    def encode() -> None:
        Bundle(bundle).encoder().encode([Text("w5 w6, W7\u00e9"), Text("w5", "w6")], 16)

    return _with_right_hash(bundle, encode, "tokenizer.json", ("files", "tokenizer.json"))


def _states(bundle: Path) -> None:
    import numpy as np

    from edgepeft.runtime.runtime import Runtime

    with Runtime(bundle, cache=False, threads=1) as runtime:
        runtime.last_hidden_state({name: np.array(values, np.int64) for name, values in ROW.items()})


def _with_right_hash(
    bundle: Path,
    use: Callable[[], object],
    name: str = "tasks/mood.onnx",
    place: Sequence[str] = ("tasks", "mood", "sha256"),
) -> tuple[list[bytes], Target]:
    path, manifest_path = bundle / name, bundle / "edgepeft.json"
    document = json.loads(manifest_path.read_bytes())
    holder = document
    for key in place[:-1]:
        holder = holder[key]

    def target(data: bytes) -> str:
        path.write_bytes(data)
        holder[place[-1]] = hashlib.sha256(data).hexdigest()
        manifest_path.write_text(json.dumps(document))
        try:
            use()
        except EdgepeftError:
            return "refused"
        return "read"

    return [path.read_bytes()], target


def profile(folder: Path) -> tuple[list[bytes], Target]:
    """A device profile."""
    from edgepeft.common.resources import data_folder
    from edgepeft.device.profiles import load_profile

    path = folder / "fuzzed.toml"

    def target(data: bytes) -> str:
        path.write_bytes(data)
        try:
            load_profile(path)
        except EdgepeftError:
            return "refused"
        return "read"

    return [file.read_bytes() for file in sorted(data_folder("profiles").glob("*.toml"))], target


def bench(folder: Path) -> tuple[list[bytes], Target]:
    """A bench JSON, compared with itself."""
    from edgepeft.bench.compare import ResultFile, compare_results

    path = folder / "fuzzed.json"
    rows = [
        {
            "scenario": "offline",
            "workload": "infer",
            "engine": "onnxruntime",
            "method": "lora",
            "task": "mood",
            "batch_size": 8,
            "sequence_length": 32,
            "threads": 2,
            "samples_s": [0.1, 0.11, 0.12],
            "instances_per_minute": 4000.0,
        }
    ]
    host = {"cpu": "x", "cores": {"usable": 2}, "gemm_samples_gflops": {"infer": [100.0, 101.0, 99.0]}}
    seed = {"schema": "edgepeft.bench/1", "mode": "limits", "host": host, "profile": {"name": "rpi4"}, "results": rows}

    def target(data: bytes) -> str:
        path.write_bytes(data)
        try:
            found = ResultFile.open(path)
            compare_results(found, found, 0.05)
        except EdgepeftError:
            return "refused"
        return "read"

    return [json.dumps(seed).encode()], target


def rows(folder: Path) -> tuple[list[bytes], Target]:
    """A data file in each format, as `edgepeft look` and `train` read it; its name stands before its content."""
    from edgepeft.data.columns import Columns
    from edgepeft.data.readers import head_of
    from edgepeft.data.rows import BadRows, read_rows
    from edgepeft.data.shapes import recognised_shape
    from edgepeft.tasks.base import kind_named

    folder.mkdir(exist_ok=True)

    def target(data: bytes) -> str:
        name, _, content = data.partition(b"\n")
        path = folder / f"rows{name.decode('ascii', 'ignore')}"
        if name not in _ROWS:  # the mutation was of the name
            return "unread"
        path.write_bytes(content)
        outcome = "read"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shape = recognised_shape(path, head_of(path))
                kind = kind_named(shape.kind if shape else "classification")
                columns = kind.columns(Columns())
                if kind.name == "text" and shape is not None:
                    columns = columns._replace(source=shape.source, target=shape.target)
                bad = BadRows(path)
                found = list(read_rows(path, labels=True, columns=columns, label_of=kind.label_text, bad=bad))
                bad.raise_or_warn(skip=False, some=bool(found))
        except EdgepeftError as error:
            outcome = "refused"
            if len(str(error)) > 100_000:
                raise WrongAnswer(f"an error of {len(str(error))} characters") from error
        return outcome

    return [name + b"\n" + content for name, content in _packed(folder)] + [
        name + b"\n" + content for name, contents in _ROWS.items() for content in contents
    ], target


_ROWS: dict[bytes, list[bytes]] = {
    b".jsonl": [
        b'{"text": "good film", "label": "a"}\n{"text": "bad", "label": "b"}\n',
        b'{"tokens": ["Ada", "came"], "tags": ["B-PER", "O"]}\n',
        b'{"question": "a", "choices": {"text": ["b", "c"], "label": ["1", "2"]}, "answerKey": "2"}\n',
        b'{"question": "a", "context": "the b", "answers": {"text": ["b"], "answer_start": [4]}}\n',
        b'{"text": "Ada came.", "entities": [[0, 3, "PER"]]}\n{"anchor": "a", "positive": "b"}\n',
    ],
    b".json": [b'[{"text": "a", "label": 1}, {"text": "b", "label": 2.5}]', b'{"data": [{"paragraphs": [{"context": "the b", "qas": [{"question": "a", "answers": [{"text": "b", "answer_start": 4}]}]}]}]}'],
    b".csv": [b"text,label\ngood,a\n\"bad, very\",b\n", "text;label\nschön;a\n".encode("cp1252"), "text\tlabel\ngood\ta\n".encode("utf-16")],
    b".tsv": [b"sentence1\tsentence2\tlabel\na\tb\t0\n"],
    b".conll": [b"-DOCSTART- -X- O\n\nAda NNP B-PER\ncame VBD O\n"],
    b".conllu": [b"# text = Ada came.\n1\tAda\tAda\tPROPN\tNNP\t_\t2\tnsubj\t_\t_\n2\tcame\tcome\tVERB\tVBD\t_\t0\troot\t_\t_\n"],
    b".jsonl.gz": [],
    b".csv.gz": [],
    b".zip": [],
    b".xlsx": [],
    b".parquet": [],
}  # fmt: skip


def _packed(folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """The formats that are no text; stored where that can be, so that a mutation meets what is inside."""
    import pyarrow
    from openpyxl import Workbook
    from pyarrow import parquet

    yield b".jsonl.gz", gzip.compress(_ROWS[b".jsonl"][0])
    yield b".csv.gz", gzip.compress(_ROWS[b".csv"][0], 0)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(archive := io.BytesIO(), "w", method) as file:
            file.writestr("all/a/1.txt", "good film")
            file.writestr("all/b/1.txt", "bad film")
        yield b".zip", archive.getvalue()
    book, plain = Workbook(), io.BytesIO()
    for cells in (("text", "label"), ("good", "a"), ("bad", 2), ("bad", 2.5)):
        book.active.append(cells)
    book.save(plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(stored := io.BytesIO(), "w") as file:
        for name in source.namelist():
            if "theme" not in name:
                file.writestr(name, source.read(name))
    yield b".xlsx", stored.getvalue()
    table = pyarrow.table({"text": ["good", "bad"], "label": ["a", "b"], "more": [["x"], []]})
    parquet.write_table(table, folder / "seed.parquet")
    yield b".parquet", (folder / "seed.parquet").read_bytes()


def plan(bundle: Path, folder: Path) -> tuple[list[bytes], Target]:
    """A sweep's plan, as far as `edgepeft sweep --dry-run` goes; what it names on the Hub is not there."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}
    from kills import PLAN

    from edgepeft.sweep.plan import read_plan
    from edgepeft.sweep.run import sweep_of

    folder.mkdir(exist_ok=True)
    rows = (f'{{"text": "w{i}", "label": "{"ab"[i % 2]}"}}\n' for i in range(30))
    (folder / "rows.jsonl").write_text("".join(rows))
    path = folder / "plan.toml"

    def target(data: bytes) -> str:
        path.write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sweep_of(read_plan(path), folder / "sweep")
        except (EdgepeftError, OSError):  # a name of 5,000 letters, which the command line says
            return "refused"
        return "read"

    seed = PLAN.format(backbone=bundle.parent / "bert")
    grid = '[[grid]]\nmethod = "lora"\nrank = [1, 2]\n'
    return [seed.encode(), seed.replace("[rates]", f'sizes = [10, "50%"]\n{grid}[rates]').encode()], target


def checkpoint(folder: Path) -> tuple[list[bytes], Target]:
    """A file of PEFT's or AdapterHub's, as `edgepeft import` reads it; folder and name stand before its content."""
    from edgepeft.backbones.source import open_backbone
    from edgepeft.training.interop.base import ImportRequest, importer_of

    golden = HERE.parent / "training" / "interop" / "golden"
    shutil.copytree(golden, folder, dirs_exist_ok=True)
    backbone = open_backbone(str(folder / "bert"))
    names = ("bert-lora-patterns", "bert-dora", "bert-ia3", "bert-vera", "bert-lokr", "bert-prefix", "bert-tags-lora")
    paths = [
        path
        for name in (*names, "adapterhub/bert-compacter", "adapterhub/bert-lora")
        for path in (*(folder / name).glob("*.json"), *(folder / name).glob("adapter_model.safetensors"))
    ]
    sound = {path.relative_to(folder).as_posix().encode(): path.read_bytes() for path in paths}

    def target(data: bytes) -> str:
        name, _, content = data.partition(b"\n")
        path = folder / name.decode("ascii", "ignore")
        if name not in sound:  # the mutation was of the name
            return "unread"
        path.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importer_of(path.parent).read(path.parent, backbone, ImportRequest("t"))
        except EdgepeftError:
            return "refused"
        finally:
            path.write_bytes(sound[name])
        return "read"

    return [name + b"\n" + content for name, content in sound.items()], target


def wire(bundle: Path) -> tuple[list[bytes], Target]:
    """A graph's bytes: no fewer fields are counted in them than protobuf makes."""
    import onnx
    from google.protobuf.message import DecodeError, Message

    from edgepeft.graph.protos import submessages
    from edgepeft.graph.validate import more_parts_than

    def target(data: bytes) -> str:
        try:
            made = onnx.ModelProto.FromString(data)
        except DecodeError:
            made = None
        if made is None:
            more_parts_than(1, data, onnx.ModelProto.DESCRIPTOR)
            return "refused"
        values = [value for part in submessages(made) for _, value in part.ListFields()]
        n = sum(1 for each in values if isinstance(each, Message))
        n += sum(len(each) for each in values if hasattr(each, "add"))  # repeated messages
        if n and len(data) > n - 1 and not more_parts_than(n - 1, data, onnx.ModelProto.DESCRIPTOR):
            raise WrongAnswer(f"{n} messages were made, and fewer parts were counted")
        return "read"

    return [(bundle / name).read_bytes() for name in ("tasks/mood.onnx", "tasks/score.onnx")], target


def request(bundle: Path) -> tuple[list[bytes], Target]:
    """Bodies, paths and headers against the application itself: never a 5xx, always a document."""
    from edgepeft.serve.app import create_app
    from edgepeft.serve.settings import Settings

    app = create_app(Settings(bundle=bundle, no_cache=True, threads=1, no_watch=True))
    loop = asyncio.new_event_loop()
    app.state.lifespan = app.router.lifespan_context(app)  # held: the service stops when it is collected
    loop.run_until_complete(app.state.lifespan.__aenter__())
    while app.state.serving.state != "ok":
        loop.run_until_complete(asyncio.sleep(0.01))

    def target(data: bytes) -> str:
        head, _, body = data.partition(b"\n")
        method, _, path = head.partition(b" ")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method.decode("latin-1") or "POST",
            "scheme": "http",
            "path": path.decode("utf-8", "replace") or "/",
            "raw_path": path,
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "app": app,
        }
        sent: list[dict[str, object]] = []

        bodies = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, object]:
            if not bodies:
                await asyncio.Event().wait()  # the client stays and says no more
            return bodies.pop()

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        loop.run_until_complete(app(scope, receive, send))
        status = int(str(sent[0]["status"]))
        content = b"".join(bytes(m.get("body", b"")) for m in sent[1:])  # type: ignore[arg-type,call-overload]
        if status >= 500 or str(bundle).encode() in content or b"Traceback" in content:
            raise WrongAnswer(f"{status}: {content[:300]!r}")
        return "answered" if status == 200 else "refused"

    seeds = [
        b'POST /v1/tasks/mood:predict\n{"text":"w5 w6"}',
        b'POST /v1/tasks/pair:predict\n{"rows":["w5",{"text":"w6","second":"w7"}]}',
        b'POST /v1/predict\n{"rows":[{"text":"w5","task":"mood"},{"text":"w6"},{"text":"w7","task":"nope"}]}',
        b'POST /v1/tasks/mood:tune\n{"rows":[{"text":"w5","label":"a"}]}',
        b"GET /v1/tasks\n",
        b"GET /static/page.js\n",
        b"GET /v1/jobs/x\n",
    ]
    return seeds, target


def targets(bundle: Path, folder: Path) -> dict[str, Callable[[], tuple[list[bytes], Target]]]:
    """Each target makes itself, on a copy of the bundle of its own."""

    def own(name: str) -> Path:
        copy = folder / name / "bundle"
        shutil.rmtree(copy.parent, ignore_errors=True)
        copy.parent.mkdir(parents=True)
        return Path(shutil.copytree(bundle, copy))

    files = ("model.safetensors", "backbone.onnx", "tasks/mood.onnx", "tokenizer.json", "config.json")
    return {
        "manifest": lambda: manifest(own("manifest")),
        "delta": lambda: delta(own("delta")),
        "session": lambda: session(own("session")),
        "onnx-delta": lambda: session(own("onnx-delta")),
        "onnx-backbone": lambda: backbone(own("onnx-backbone")),
        "onnx-training": lambda: training(own("onnx-training")),
        "check": lambda: check(own("check")),
        "tokenizer": lambda: tokenizer(own("tokenizer")),
        "profile": lambda: profile(folder),
        "bench": lambda: bench(folder),
        "request": lambda: request(own("request")),
        "rows": lambda: rows(folder / "rows"),
        "plan": lambda: plan(bundle, folder / "plan"),
        "checkpoint": lambda: checkpoint(folder / "checkpoint"),
        "wire": lambda: wire(own("wire")),
        **{f"altered-{Path(f).name}": lambda f=f: altered(own(f"altered-{Path(f).name}"), f) for f in files},  # type: ignore[misc]
    }
