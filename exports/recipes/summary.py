"""Mean and standard deviation over seeds: python summary.py DELTA..., folders that `edgepeft train` wrote."""

import json
import statistics
import sys
from pathlib import Path


def summary(folders: list[Path]) -> str:
    """One line: method, metric, mean and standard deviation of the reported rows' scores, in per cent of 1."""
    cards = [json.loads((folder / "delta.json").read_text(encoding="utf-8")) for folder in folders]
    first = cards[0]
    scores = [100 * card["metrics"]["test"] for card in cards]
    spread = f" +- {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return (
        f"{first['method']}: {first['metrics']['metric']} {statistics.mean(scores):.1f}{spread} "
        f"over {len(scores)} seeds, {first['metrics']['n_train']} examples, {first['metrics']['n_test']} test rows"
    )


if __name__ == "__main__":
    print(summary([Path(name) for name in sys.argv[1:]]))
