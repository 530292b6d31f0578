"""What a delta has to be compared with before it is worth having: accuracy, bytes and throughput of what else there is.

    python -m bench.rivals train WORK --backbone FOLDER --data FOLDER [--setfit PYTHON]   # minutes a task
    python -m bench.rivals time WORK [--setfit PYTHON]                                    # prints the Markdown table

``--data`` holds a folder a task with train, eval and test rows, as `make quickstart` leaves them.  Rivals, each with
its own defaults: a linear head on the frozen backbone (our method ``linear``), LoRA (our delta), full fine-tuning as a
merged model for each task, and SetFit where ``--setfit`` names an interpreter that has it.  Throughput is of single
texts, all rivals in turn in one run, the same threads for all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Annotated

import typer
from tokenizers import Tokenizer

from edgepeft.cli._main import main
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import UsageError
from edgepeft.data.rows import read_rows
from edgepeft.device.machine import host_facts

METHODS = ("linear", "lora", "full")
THREADS = 2
N_TASKS = 10  # that bytes are given for
SETFIT = "SetFit"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def train(
    work: Path,
    *,
    backbone: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    setfit: Annotated[str | None, typer.Option()] = None,
) -> None:
    """Train every rival on every task, with each library's defaults; export the bundle and the merged models."""
    import edgepeft
    from edgepeft.deploy.merge import merge_task

    folders = sorted(path for path in data.iterdir() if path.is_dir()) if data.is_dir() else []
    if not folders:
        raise UsageError(f"--data {data} holds no folder of a task with train.jsonl, eval.jsonl and test.jsonl.")
    if work.exists():
        raise UsageError(f"{work} is there already, with other results; name a new folder.")
    if setfit is not None and shutil.which(setfit) is None:
        raise UsageError(f"--setfit {setfit}: there is no such interpreter; make an environment with setfit in it.")
    work.mkdir(parents=True)
    scores: dict[str, dict[str, float]] = {name: {} for name in (*METHODS, *([SETFIT] if setfit else []))}
    for folder in folders:
        data, chosen, reported = (folder / f"{part}.jsonl" for part in ("train", "eval", "test"))
        for method in METHODS:
            task = f"{folder.name}-{method}"
            out = work / "deltas" / task
            asked = edgepeft.TrainOptions(
                backbone=backbone, data=data, eval=chosen, test=reported, method=method, task=task, out=out
            )
            result = edgepeft.train(asked)
            scores[method][folder.name] = result.score
            print(task, result.score, flush=True)
        if setfit:
            done = _setfit(setfit, backbone, folder, work / "setfit").communicate()[0]
            told = json.loads(done.splitlines()[-1])
            scores[SETFIT][folder.name] = told["accuracy"]
            print(folder.name, told, flush=True)
    edgepeft.export(backbone=backbone, delta=sorted((work / "deltas").iterdir()), out=work / "bundle")
    bundle = edgepeft.Bundle(work / "bundle")
    merge_task(bundle, f"{folder.name}-full", work / "merged")
    conditions = {"backbone": str(backbone), "data": str(folder), "host": host_facts()}
    write_json(work / "scores.json", {"scores": scores, **conditions})


@app.command(name="time")
def throughput(
    work: Path, *, setfit: Annotated[str | None, typer.Option()] = None, rounds: Annotated[int, typer.Option()] = 20
) -> None:
    """Time single texts of the last task, all rivals in turn; print the table and keep the samples."""
    if not (work / "scores.json").is_file():
        raise UsageError(f"{work} holds no scores.json; run `python -m bench.rivals train {work}` to its end first.")
    kept = json.loads((work / "scores.json").read_bytes())
    folder = Path(kept["data"])
    texts = [row.sentence1 for row in read_rows(folder / "test.jsonl", labels=True)][:32]
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        answers = _answering(stack, work, folder, kept["backbone"], setfit)
        for _ in range(rounds + 1):
            for name, answer in answers.items():
                start = time.perf_counter()
                for text in texts:
                    answer(text)
                samples.setdefault(name, []).append(len(texts) / (time.perf_counter() - start))
    rates = {name: each[1:] for name, each in samples.items()}  # the first round warms up
    write_json(work / "times.json", {"texts_per_second": rates, "threads": THREADS, "host": host_facts()})
    print(_table(work, kept["scores"], rates))
    mean_tokens = mean(len(_tokenizer(work / "merged").encode(text).ids) for text in texts)
    print(
        f"Medians of {rounds} rounds of {len(texts)} texts of {folder.name}, one by one, {mean_tokens:.0f} tokens "
        f"in the mean; {THREADS} threads; {host_facts()['cpu']}. Bytes of one task, or of one model, times {N_TASKS}."
    )


def _answering(
    stack: ExitStack, work: Path, folder: Path, backbone: str, setfit: str | None
) -> dict[str, Callable[[str], object]]:
    """What answers one text, by rival; opened here, closed with the stack."""
    from edgepeft.runtime.runtime import Runtime
    from edgepeft.runtime.session import plain_session

    runtime = stack.enter_context(Runtime(work / "bundle", threads=THREADS))
    merged, tokenizer = plain_session(work / "merged" / "model.onnx", THREADS), _tokenizer(work / "merged")

    def answer_merged(text: str) -> object:
        encoded = tokenizer.encode(text)
        given = {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask, "token_type_ids": encoded.type_ids}
        return merged.run(["logits"], {each.name: [given[each.name]] for each in merged.get_inputs()})

    answers: dict[str, Callable[[str], object]] = {
        method: lambda text, task=f"{folder.name}-{method}": runtime.predict(task, [text])  # type: ignore[misc]
        for method in METHODS[:2]
    }
    answers["full"] = answer_merged
    if setfit:
        process = stack.enter_context(_setfit(setfit, Path(backbone), folder, work / "setfit"))

        def answer_setfit(text: str) -> object:
            process.stdin.write(json.dumps([text]) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return process.stdout.readline()  # type: ignore[union-attr]

        answers[SETFIT] = answer_setfit
    return answers


def _tokenizer(model: Path) -> Tokenizer:
    """The merged model's, cut as the task was trained."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    settings = json.loads((model / "tokenizer_config.json").read_bytes())
    tokenizer.enable_truncation(settings["model_max_length"])
    tokenizer.no_padding()
    return tokenizer


def _table(work: Path, scores: dict[str, dict[str, float]], rates: dict[str, list[float]]) -> str:
    """One row a rival; a ratio is the median over rounds of the same round's."""
    tasks = list(scores["lora"])
    heads = ["", *tasks, f"{N_TASKS} tasks on disk", "texts per second", "over LoRA"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, by_task in scores.items():
        cells = [f"{100 * by_task[task]:.1f} %" for task in tasks]
        ratio = median(own / lora for own, lora in zip(rates[name], rates["lora"], strict=True))
        cells += [f"{_bytes(work, name, scores) / 1e6:,.0f} MB", f"{median(rates[name]):.0f}", f"{ratio:.2f}x"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _bytes(work: Path, name: str, scores: dict[str, dict[str, float]]) -> float:
    """Of ten tasks: the bundle's shared files once and ten deltas of mean size, or ten models."""
    if name == "full":
        return N_TASKS * (work / "merged" / "model.onnx").stat().st_size
    if name == SETFIT:
        files = [file for file in (work / "setfit").rglob("*") if file.is_file()]
        return N_TASKS * sum(file.stat().st_size for file in files) / len(scores[name])
    bundle = work / "bundle"
    shared = sum((bundle / file).stat().st_size for file in ("model.safetensors", "backbone.onnx", "tokenizer.json"))
    return shared + N_TASKS * mean((bundle / "tasks" / f"{task}-{name}.onnx").stat().st_size for task in scores[name])


def _setfit(python: str, backbone: Path, folder: Path, out: Path) -> subprocess.Popen[str]:
    """Trains unless ``out`` has the task's model; then answers lines."""
    command = [python, "-m", "bench.peers.setfit", str(backbone), str(folder), str(out / folder.name)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


if __name__ == "__main__":
    main(app)
