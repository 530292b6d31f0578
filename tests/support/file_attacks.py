"""Files that ask for more than they hold: each attack writes its file in a folder, and says which command reads it.

    python tests/support/file_attacks.py [--quick] [--mb 60] [NAME ...]

The command runs in a process of its own, and the same command on a sound file: what it takes beyond that is what the attack costs.
Prints a table; exit 1 where a bound did not hold.  ``attack.py`` runs all of them, CI those of ``QUICK``.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import io
import json
import multiprocessing
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hostile
from subject import subject

MAX_S = 2.0  # of one core, beyond what a sound file takes
MAX_MB = 256.0  # beyond the file's own size
MAX_SAID = 4000  # characters of all that is printed
PATIENCE_S = 120.0
MB = 10**6
GOLDEN = Path(__file__).resolve().parents[1] / "training" / "interop" / "golden"

Make = Callable[[Path, Path, int], Sequence[str]]


def field(number: int, content: bytes) -> bytes:
    """A protobuf field of bytes."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _delta(bundle: Path, folder: Path, behind: bytes) -> Sequence[str]:
    """A bundle with a task whose graph has more ``behind`` it, and the right hash."""
    copy = Path(shutil.copytree(bundle, folder / "bundle"))
    hostile.alter(copy, "tasks/mood.onnx", lambda _: None, behind)
    return ["info", str(copy)]


def nodes(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A delta of empty nodes."""
    return _delta(bundle, folder, field(7, b"\x0a\x00" * (size // 2)))


def attributes(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A delta with a node of empty attributes."""
    return _delta(bundle, folder, field(7, field(1, b"\x2a\x00" * (size // 2))))


def metadata(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A delta of empty metadata."""
    return _delta(bundle, folder, b"\x72\x00" * (size // 2))


def names(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A delta with a node of empty names."""
    return _delta(bundle, folder, field(7, field(1, b"\x0a\x00" * (size // 2))))


def packed(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A delta with a tensor of packed numbers, of which each byte becomes eight."""
    return _delta(bundle, folder, field(7, field(5, field(7, b"\x00" * size))))


def dims(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A delta with a tensor of so many dimensions."""
    return _delta(bundle, folder, field(7, field(5, field(1, b"\x01" * size))))


def _peft(folder: Path, **settings: Any) -> Path:
    copy = Path(shutil.copytree(GOLDEN / "bert-lora-all-linear", folder / "theirs"))
    config = json.loads((copy / "adapter_config.json").read_bytes())
    (copy / "adapter_config.json").write_text(json.dumps(config | settings))
    return copy


def _import(folder: Path, theirs: Path) -> Sequence[str]:
    return ["import", str(theirs), "--backbone", str(GOLDEN / "bert"), "--out", str(folder / "out"), "--task", "t"]


def pattern_backtracks(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A pattern of target_modules that matches each name in more ways than can be tried."""
    return _import(folder, _peft(folder, target_modules=r"((.|\w)+)+[#!]"))


def pattern_grows(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A pattern that is small as text and large once it is compiled."""
    return _import(folder, _peft(folder, target_modules="((((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}){1,99}"))


def pattern_long(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A pattern of so many alternatives."""
    return _import(folder, _peft(folder, target_modules="|".join(f"x{i}" for i in range(size // 8))))


def patterns(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """Patterns of ranks that take a while each."""
    return _import(folder, _peft(folder, rank_pattern={f"((.|\\w){{{i + 9}}})+[#!]": 1 for i in range(50)}))


def _bin(folder: Path, tensors: Any, compressed: bool = False) -> Path:
    import torch

    theirs = _peft(folder)
    (theirs / "adapter_model.safetensors").unlink()
    path = theirs / "adapter_model.bin"
    torch.save(tensors, path)
    if compressed:
        packed = folder / "packed.bin"
        with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
            for member in source.infolist():
                target.writestr(member.filename, source.read(member))
        packed.replace(path)
    return theirs


def deflated(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A .bin whose tensors are zeros, deflated."""
    import torch

    return _import(folder, _bin(folder, {"w": torch.zeros(size * 10 // 4)}, compressed=True))


def stride(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A .bin with a tensor of stride 0, which holds one number."""
    import torch

    return _import(folder, _bin(folder, {"w": torch.zeros(1).expand(60_000, 60_000)}))


def shared(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A .bin with ten thousand tensors that are one storage."""
    import torch

    one = torch.zeros(size // 8)
    return _import(folder, _bin(folder, {f"w{i}": one for i in range(1_000)}))


def sparse_config(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A config.json of 3 GB that takes no place on the disk."""
    theirs = _peft(folder)
    with (theirs / "adapter_config.json").open("r+b") as file:
        file.truncate(3 * 10**9)
    return _import(folder, theirs)


def list_config(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A config.json of empty lists."""
    theirs = _peft(folder)
    (theirs / "adapter_config.json").write_bytes(b'{"a":[' + b",".join([b"[]"] * (size // 3)) + b"]}")
    return _import(folder, theirs)


def header(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A safetensors file that is all header: so many tensors of no values."""
    theirs = _peft(folder)
    text = json.dumps(
        {f"{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(size // 56)}
    ).encode()
    (theirs / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return _import(folder, theirs)


def _plan(folder: Path, content: bytes) -> Sequence[str]:
    (folder / "plan.toml").write_bytes(content)
    return ["sweep", str(folder / "plan.toml"), "--out", str(folder / "out"), "--dry-run"]


def plan_nested(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A plan of 100,000 brackets."""
    return _plan(folder, b"a = " + b"[" * 100_000 + b"]" * 100_000)


def plan_dotted(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A plan whose key has 100,000 parts."""
    return _plan(folder, b"a." * 100_000 + b"a = 1")


def plan_nul(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A plan with NUL in its names."""
    plan = b'backbones = ["a\\u0000b"]\nmethods = ["lora"]\nseeds = [0]\n[data."mo\\u0000od"]\ndata = "x\\u0000y.csv"\ntest = 0.2\n'
    return _plan(folder, plan)


def plan_large(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A plan of so many tables."""
    return _plan(folder, b"".join(b"[a%d]\n" % i for i in range(size // 10)))


def sweep_nested(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A sweep.json of 100,000 brackets."""
    (folder / "sweep").mkdir()
    (folder / "sweep" / "sweep.json").write_bytes(b'{"schema":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    return ["report", str(folder / "sweep"), "--out", str(folder / "page")]


def sweep_lists(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A sweep.json of empty lists."""
    (folder / "sweep").mkdir()
    (folder / "sweep" / "sweep.json").write_bytes(b'{"schema":[' + b",".join([b"[]"] * (size // 3)) + b"]}")
    return ["report", str(folder / "sweep"), "--out", str(folder / "page")]


def card_lists(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A delta.json of empty lists."""
    (folder / "delta").mkdir()
    (folder / "delta" / "delta.json").write_bytes(b'{"metrics":{"a":[' + b",".join([b"[]"] * (size // 3)) + b"]}}")
    return ["info", str(folder / "delta")]


def card_keys(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A delta.json of unknown keys, each of which is a mistake to tell."""
    (folder / "delta").mkdir()
    (folder / "delta" / "delta.json").write_bytes(b"{" + b",".join(b'"%d":0' % i for i in range(size // 11)) + b"}")
    return ["info", str(folder / "delta")]


def parquet(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A parquet file of a few kB: one text of 20 MB, a thousand times, by its dictionary."""
    import pyarrow
    from pyarrow import parquet

    text = pyarrow.DictionaryArray.from_arrays([0] * 1000, ["x " * 10**7])
    parquet.write_table(
        pyarrow.table({"text": text, "label": ["a", "b"] * 500}), folder / "rows.parquet", compression="zstd"
    )
    return ["look", str(folder / "rows.parquet")]


def packed_arrow(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """An arrow file of 100 kB that is unpacked to a GB."""
    import pyarrow

    table = pyarrow.table({"text": ["x " * 500_000] * 1000, "label": ["a", "b"] * 500})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_file(str(folder / "rows.arrow"), table.schema, options=options) as file:
        file.write_table(table)
    return ["look", str(folder / "rows.arrow")]


def runs(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A parquet file of runs: a hundred million rows in a few kB."""
    import pyarrow
    from pyarrow import parquet

    n = 30_000_000
    rows = pyarrow.table(
        {"text": pyarrow.DictionaryArray.from_arrays(pyarrow.nulls(n, pyarrow.int8()).fill_null(0), ["a"])}
    )
    parquet.write_table(rows, folder / "rows.parquet", row_group_size=n)
    return ["look", str(folder / "rows.parquet")]


def gz(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A line of 300 MB in a gz file of 1 MB."""
    with gzip.open(folder / "rows.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(b" " * MB)
    return ["look", str(folder / "rows.jsonl.gz")]


def gz_csv(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A cell of 200 MB, of short lines, in a gz file of 2 MB."""
    with gzip.open(folder / "rows.csv.gz", "wb", compresslevel=1) as file:
        file.write(b'text,label\n"')
        for _ in range(200):
            file.write((b"x" * 99 + b"\n") * 10_000)
    return ["look", str(folder / "rows.csv.gz")]


def zipped(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """Two texts of 300 MB in a zip file of 3 MB."""
    with zipfile.ZipFile(folder / "rows.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for label in ("a", "b"):
            with archive.open(f"{label}/1.txt", "w", force_zip64=True) as file:
                for _ in range(300):
                    file.write(b"x " * (MB // 2))
    return ["look", str(folder / "rows.zip")]


def zip_members(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A zip file of so many empty texts."""
    with zipfile.ZipFile(folder / "rows.zip", "w") as archive:
        for i in range(size // 120):
            archive.writestr(f"a/{i}.txt", b"x")
    return ["look", str(folder / "rows.zip")]


def _xlsx(folder: Path, change: Callable[[str], Iterator[bytes] | None]) -> Sequence[str]:
    from openpyxl import Workbook

    book, plain = Workbook(), io.BytesIO()
    for row in (("text", "label"), ("good", "a"), ("bad", "b")):
        book.active.append(row)
    book.save(plain)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(folder / "rows.xlsx", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for name in source.namelist():
            with target.open(name, "w", force_zip64=True) as file:
                for piece in change(name) or (source.read(name),):
                    file.write(piece)
    return ["look", str(folder / "rows.xlsx")]


_MAIN = b'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def xlsx_strings(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A spreadsheet with ten million shared texts in 1 MB."""

    kind = b"application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"
    part = b'<Override PartName="/xl/sharedStrings.xml" ContentType="%b"/></Types>' % kind
    arguments = _xlsx(folder, lambda _: None)
    whole = folder / "whole.xlsx"
    (folder / "rows.xlsx").rename(whole)
    with (
        zipfile.ZipFile(whole) as source,
        zipfile.ZipFile(folder / "rows.xlsx", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"</Types>", part))
        with target.open("xl/sharedStrings.xml", "w", force_zip64=True) as file:
            for piece in (b"<sst %b>" % _MAIN, *[b"<si><t>x</t></si>" * 10_000] * 1000, b"</sst>"):
                file.write(piece)
    whole.unlink()
    return arguments


def xlsx_cells(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A spreadsheet with a row of five million cells in 400 kB."""

    def change(name: str) -> Iterator[bytes] | None:
        if name != "xl/worksheets/sheet1.xml":
            return None
        return iter(
            [
                b"<worksheet %b><sheetData><row>" % _MAIN,
                *[b"<c><v>1</v></c>" * 10_000] * 500,
                b"</row></sheetData></worksheet>",
            ]
        )

    return _xlsx(folder, change)


def xlsx_entities(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A spreadsheet whose entities refer to each other ten times each."""

    def change(name: str) -> Iterator[bytes] | None:
        if name != "xl/worksheets/sheet1.xml":
            return None
        kinds = [
            b'<!ENTITY a0 "xxxxxxxxxx">',
            *(b'<!ENTITY a%d "%b">' % (i, b"&a%d;" % (i - 1) * 10) for i in range(1, 10)),
        ]
        cell = b'<c t="inlineStr"><is><t>&a9;</t></is></c>'
        return iter(
            [
                b"<!DOCTYPE x [%b]><worksheet %b><sheetData><row>%b</row></sheetData></worksheet>"
                % (b"".join(kinds), _MAIN, cell)
            ]
        )

    return _xlsx(folder, change)


def json_lists(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A .json of empty lists."""
    (folder / "rows.json").write_bytes(b"[" + b",".join([b"[]"] * (size // 3)) + b"]")
    return ["look", str(folder / "rows.json")]


def jsonl_lists(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A .jsonl with one row of empty lists."""
    (folder / "rows.jsonl").write_bytes(b'{"text":"a","label":"b","more":[' + b",".join([b"[]"] * (size // 3)) + b"]}")
    return ["look", str(folder / "rows.jsonl")]


def csv_cells(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A csv of empty cells."""
    (folder / "rows.csv").write_bytes(b"," * size)
    return ["look", str(folder / "rows.csv")]


def conll_tokens(bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """A CoNLL file of one sentence."""
    (folder / "rows.conll").write_bytes(b"a O\n" * (size // 4))
    return ["look", str(folder / "rows.conll")]


ATTACKS: tuple[Make, ...] = (
    nodes, attributes, metadata, names, packed, dims,
    pattern_backtracks, pattern_grows, pattern_long, patterns, deflated, stride, shared, sparse_config, list_config, header,
    plan_nested, plan_dotted, plan_nul, plan_large, sweep_nested, sweep_lists, card_lists, card_keys,
    parquet, packed_arrow, runs, gz, gz_csv, zipped, zip_members, xlsx_strings, xlsx_cells, xlsx_entities,
    json_lists, jsonl_lists, csv_cells, conll_tokens,
)  # fmt: skip


QUICK = (
    nodes,
    metadata,
    packed,
    pattern_backtracks,
    deflated,
    stride,
    sparse_config,
    plan_dotted,
    parquet,
    gz,
    xlsx_cells,
)

NEEDS = {
    "parquet": "pyarrow",
    "packed_arrow": "pyarrow",
    "runs": "pyarrow",
    "xlsx_strings": "openpyxl",
    "xlsx_cells": "openpyxl",
    "xlsx_entities": "openpyxl",
}


@dataclass(frozen=True)
class Cost:
    """Of one command: seconds of a core, the most memory, how it ended and the end of what it said."""

    core_s: float
    peak_mb: float
    code: int
    said: str


def cost(arguments: Sequence[str], folder: Path) -> Cost:
    """Run the command line; a command that takes too long is killed."""
    with (folder / "said").open("w+b") as said:
        process = subprocess.Popen([sys.executable, "-m", "edgepeft", *arguments], stdout=said, stderr=said, cwd=folder)
        until = time.monotonic() + PATIENCE_S
        while True:
            done, status, used = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > until:
                process.kill()
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read().decode(errors="replace")
    core_s = used.ru_utime + used.ru_stime
    return Cost(core_s, used.ru_maxrss / 1024, process.returncode, text)


def made(make: Make, bundle: Path, folder: Path, size: int) -> Sequence[str]:
    """Its command line; made by a process of its own: the most memory of a parent counts as its child's."""
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    maker = context.Process(target=lambda: theirs.send(make(bundle, folder, size)))
    maker.start()
    maker.join()
    arguments: Sequence[str] = ours.recv() if ours.poll() else []
    if not arguments:
        raise SystemExit(f"the files of {make.__name__} cannot be made")
    return arguments


def sound(kind: str, bundle: Path, folder: Path) -> Sequence[str]:
    """The command on a file that is what it should be."""
    folder.mkdir()
    if kind == "import":
        return _import(folder, _peft(folder))
    if kind == "info":
        return ["info", str(bundle)]
    if kind == "sweep":
        return _plan(folder, b"a = 1")
    (folder / "rows.csv").write_text("text,label\n" + "good,a\nbad,b\n" * 20)
    return ["look", str(folder / "rows.csv")]


def bounded(bundle: Path, folder: Path, size: int, attacks: Sequence[Make] = ATTACKS) -> Iterator[dict[str, Any]]:
    """Each attack with what it costs beyond the same command on a sound file, and whether that is within the bounds."""
    usual: dict[str, Cost] = {}
    for make in attacks:
        place = folder / make.__name__
        arguments = made(make, bundle, place, size)
        kind = arguments[0] if arguments[0] in ("import", "info", "sweep") else "look"
        if kind not in usual:
            usual[kind] = cost(sound(kind, bundle, folder / f"sound-{kind}"), folder / f"sound-{kind}")
            if usual[kind].code not in (0, 2):
                raise SystemExit(f"{kind} fails on a sound file: {usual[kind].said}")
        files = [path for path in place.rglob("*") if path.is_file()]
        own_mb = max(path.stat().st_blocks * 512 for path in files) / MB
        found = cost(arguments, place)
        shutil.rmtree(place)
        core_s, more_mb = found.core_s - usual[kind].core_s, found.peak_mb - usual[kind].peak_mb - own_mb
        told = found.code in (0, 1, 2) and "Traceback" not in found.said and len(found.said) < MAX_SAID
        yield {
            "attack": make.__name__,
            "file_mb": round(own_mb, 1),
            "core_s": round(max(0.0, core_s), 1),
            "more_mb": round(max(0.0, more_mb), 1),
            "exit_code": found.code,
            "said": found.said.strip().rpartition("\n")[2][:200],
            "held": core_s < MAX_S and more_mb < MAX_MB and told,
        }


def show(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], bound: str) -> None:
    """A table on standard error: each attack, the bound, and the worst that was seen."""
    print(f"{'attack':<48}{'bound':<38}{'worst seen':<38}held", file=sys.stderr)
    for row in rows:
        seen = ", ".join(f"{row[name]:g} {unit}" for name, unit in columns.items() if row.get(name) is not None)
        print(f"{row['attack']:<48}{bound:<38}{seen:<38}{'yes' if row['held'] else 'NO'}", file=sys.stderr)


def main() -> None:
    """Each attack in turn; one JSON document on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=60, help="size of the files that are no smaller by themselves")
    parser.add_argument("--quick", action="store_true", help="one of each kind, with files of 20 MB: half a minute")
    parser.add_argument("only", nargs="*", metavar="NAME")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="edgepeft-files."))
    os.environ["EDGEPEFT_CACHE"] = str(folder / "cache")
    attacks = [make for make in (QUICK if asked.quick else ATTACKS) if not asked.only or make.__name__ in asked.only]
    rows = []
    for make in attacks[:]:
        package = NEEDS.get(make.__name__, "json")
        if importlib.util.find_spec(package) is None:
            print(f"{make.__name__} is left out: {package}, which makes its file, is not installed.", file=sys.stderr)
            attacks.remove(make)
    try:
        (place,) = made(lambda *_: [str(subject(folder / "subject"))], folder, folder / "made", 0)
        for row in bounded(Path(place), folder, (20 if asked.quick else asked.mb) * MB, attacks):
            rows.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    bound = f"{MAX_S:g} s, {MAX_MB:g} MB, one line of words"
    show(rows, {"core_s": "s", "more_mb": "MB", "file_mb": "MB file"}, bound)
    print(json.dumps({"attacks": rows}, indent=2))
    sys.exit(0 if all(row["held"] for row in rows) else 1)


if __name__ == "__main__":
    main()
