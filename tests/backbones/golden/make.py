"""Writes the golden models that lie beside this file; needs transformers 5, which CI does not install.

    python tests/backbones/golden/make.py

Tiny random models that transformers 4 has none of, as ``save_pretrained`` writes them, with a ragged batch, their own
hidden states in float64 and how far from these float32 may lie.
"""

import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from graphs import Both
from tiny import ROTARY, SIZES, ragged, write_model


def main() -> None:
    for model_type in ROTARY:
        folder = write_model(HERE / model_type, model_type)
        rows, both = ragged(6, 13, SIZES[model_type]), Both(folder)
        rows = {name: rows[name] for name in both.backbone.architecture.inputs}
        exact = both.exact(rows)
        both.assert_equal(rows)
        save_file(
            {**rows, "hidden": exact.value, "error": np.array(exact.error)},
            folder / "states.safetensors",
            {"transformers": version("transformers")},
        )


if __name__ == "__main__":
    main()
