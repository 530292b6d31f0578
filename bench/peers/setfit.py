"""SetFit (Tunstall et al., 2022, arXiv:2209.11055): the backbone fine-tuned on pairs, a logistic regression on top.

    python -m bench.peers.setfit BACKBONE DATA OUT

Runs in an environment of its own, since SetFit holds transformers to versions that are not ours; nothing here imports
edgepeft.  Trains on DATA/train.jsonl and prints its score as a line of JSON; where OUT exists, answers each line of
standard input, a JSON list of texts, by the model in it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path


def _rows(path: Path) -> tuple[list[str], list[str]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["sentence1"] for row in rows], [row["label"] for row in rows]


def _main(backbone: str, data: Path, out: Path) -> None:
    import setfit
    import torch
    from datasets import Dataset

    torch.set_num_threads(2)
    if out.exists():
        model = setfit.SetFitModel.from_pretrained(str(out))
        for line in sys.stdin:
            print(json.dumps([str(answer) for answer in model.predict(json.loads(line))]), flush=True)
        return
    texts, labels = _rows(data / "train.jsonl")
    model = setfit.SetFitModel.from_pretrained(backbone, labels=sorted(set(labels)))
    with tempfile.TemporaryDirectory() as folder:
        # As many steps of as many texts as the deltas take, 3 epochs; SetFit's one epoch of all pairs takes hours.
        asked = setfit.TrainingArguments(output_dir=folder, max_steps=3 * len(texts) // 16, batch_size=8)
        start = time.perf_counter()
        setfit.Trainer(model, asked, train_dataset=Dataset.from_dict({"text": texts, "label": labels})).train()
        seconds = time.perf_counter() - start
    tested, expected = _rows(data / "test.jsonl")
    right = sum(str(answer) == label for answer, label in zip(model.predict(tested), expected, strict=True))
    model.save_pretrained(str(out))
    print(
        json.dumps({"accuracy": right / len(expected), "train_s": seconds, "version": setfit.__version__}), flush=True
    )


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
