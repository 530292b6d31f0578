"""``edgepeft run``: predictions of one or several tasks, with ONNX Runtime alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepeft.cli._output import log, print_json
from edgepeft.errors import UsageError

if TYPE_CHECKING:
    from edgepeft.backbones.tokens import Text
    from edgepeft.runtime.runtime import Runtime

__all__ = ["command"]


def command(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    text: Annotated[list[str] | None, typer.Argument(help="Texts to classify.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="A task; may repeat. Without it: every task.")] = None,
    second: Annotated[list[str] | None, typer.Option(help="Second sentence of each TEXT, for pair tasks.")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="jsonl, csv or tsv; answers are printed as jsonl.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of the file that run together.")] = 32,
    threads: Annotated[int | None, typer.Option(min=1, help="At most as many as the host allows.")] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="A private copy of the weights for each task; nothing is kept on disk.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Answer texts, pairs or a file with the bundle's tasks; neither torch nor transformers is loaded."""
    from edgepeft.runtime.runtime import Runtime, in_batches

    texts = _texts(text, second, input_file)
    runtime = Runtime(bundle, threads=threads, cache=not no_cache)
    tasks = list(dict.fromkeys(task or runtime.tasks))
    if not tasks:
        raise UsageError(f"{bundle} holds no task; add one with: edgepeft add.")
    for name in tasks:
        runtime.bundle.entry(name)
    answers = (answer for batch in in_batches(texts, batch_size) for answer in _answers(runtime, tasks, batch))
    if input_file is not None:
        _print_stream(answers, as_document=as_json)
    elif as_json:
        print_json(list(answers))
    else:
        for answer in answers:
            for prediction in answer["predictions"]:
                shown = prediction.get("label", prediction.get("value"))
                score = f"\t{prediction['score']:.3f}" if "score" in prediction else ""
                typer.echo(f"{prediction['task']}\t{shown}{score}\t{_one_line(answer['text'])}")
    if runtime.truncation.rows:
        log().print(f"{runtime.truncation.rows} answer(s) read a text cut to the task's maximal length.")


def _texts(text: list[str] | None, second: list[str] | None, file: Path | None) -> Iterator[Text]:
    from edgepeft.backbones.tokens import Text
    from edgepeft.rows import read_rows

    if (file is None) == (not text):
        raise UsageError("give either texts or --input FILE.")
    if file is not None:
        if second:
            raise UsageError("--second goes with texts; a file has its own column sentence2.")
        return (Text(row.sentence1, row.sentence2) for row in read_rows(file, labels=False))
    firsts = text or []
    if second and len(second) != len(firsts):
        raise UsageError(f"{len(firsts)} texts and {len(second)} --second; each text needs its own.")
    seconds: list[str] | list[None] = second or [None] * len(firsts)
    return iter([Text(*pair) for pair in zip(firsts, seconds, strict=True)])


def _answers(runtime: Runtime, tasks: list[str], texts: list[Text]) -> Iterator[dict[str, Any]]:
    by_task = runtime.predict_all(tasks, texts)
    for i, text in enumerate(texts):
        pair = {} if text.second is None else {"second": text.second}
        yield {"text": text.first, **pair, "predictions": [by_task[name][i].as_json() for name in tasks]}


def _print_stream(answers: Iterator[dict[str, Any]], *, as_document: bool) -> None:
    """A line per answer; as one JSON array where a document is asked for, still in constant memory."""
    opening = "["
    for answer in answers:
        line = json.dumps(answer, ensure_ascii=False)
        typer.echo(f"{opening}{line}" if as_document else line, nl=not as_document)
        opening = ",\n"
    if as_document:
        typer.echo("]")


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else f"{flat[:57]}..."
