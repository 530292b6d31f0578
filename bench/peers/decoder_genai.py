"""Text by onnxruntime-genai: the model that its own builder makes, in blocks of 32 of 4 or 8 bits, for processors."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from bench.peers._writing import require_all
from edgepeft.bench.planning.job import Job, Prepared


def export(folder: Path, out: Path, precision: str) -> None:
    """Write the model; the builder needs onnx-ir and a transformers of its release, and torch, beside it.

    A tokenizer is made up, which it asks for: tokens are given as numbers.
    """
    from tokenizers import Tokenizer, models

    package = find_spec("onnxruntime_genai")
    assert package is not None and package.origin is not None, "asked for where it is installed"
    source = out / "source"
    source.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (source / name).symlink_to((folder / name).resolve())
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    words = {f"w{number}": number for number in range(size)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    builder = Path(package.origin).parent / "models" / "builder.py"
    options = ["int4_accuracy_level=4", "int4_block_size=32"]
    command = [sys.executable, str(builder), "-i", str(source), "-o", str(out), "-p", precision, "-e", "cpu"]
    subprocess.run([*command, "-c", str(out / "cache"), "--extra_options", *options], check=True)


def write(job: Job) -> Prepared:
    """A generator a step, as its examples have it."""
    import onnxruntime_genai as genai

    folder = Path(str(job.model)).parent
    config = genai.Config(str(folder))
    threads = {"intra_op_num_threads": job.threads}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
    model = genai.Model(config)

    def step(batch: int) -> None:
        ids = job.batch(batch)["input_ids"]  # rows of equal length
        rows, length = ids.shape
        most = length + job.new_tokens
        options = genai.GeneratorParams(model)
        options.set_search_options(batch_size=rows, max_length=most, min_length=most, do_sample=False)
        generator = genai.Generator(model, options)
        generator.append_tokens(ids.astype("int32"))
        for _ in range(job.new_tokens):
            generator.generate_next_token()
        require_all([len(generator.get_sequence(row)) - length for row in range(rows)], job.new_tokens)

    return Prepared(step)
