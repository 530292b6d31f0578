"""edgepeft: many parameter-efficient tasks on one frozen Transformer, on one small board.

    train(backbone="all-MiniLM-L6-v2", data="reviews.csv", task="mood", method="lora", out="mood")
    export(backbone="all-MiniLM-L6-v2", delta="mood", out="bundle")
    tune("bundle", "mood", "more.csv")
    Runtime("bundle").predict("mood", ["The soup was cold."])

Each name is imported when it is first read: importing edgepeft loads neither PyTorch nor ONNX Runtime.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from edgepeft.common.errors import requiring

__version__ = "0.1.0"
__all__ = ["Bundle", "LocalTuner", "Runtime", "TrainOptions", "TuneOptions", "__version__", "export", "train", "tune"]

if TYPE_CHECKING:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.cli._functions import export, train
    from edgepeft.runtime.runtime import Runtime
    from edgepeft.training.options import TrainOptions
    from edgepeft.tuning.local import LocalTuner
    from edgepeft.tuning.target import TuneOptions
    from edgepeft.tuning.tune import tune
else:
    _HOMES = {
        "Bundle": "edgepeft.bundle.bundle:Bundle",
        "LocalTuner": "edgepeft.tuning.local:LocalTuner",
        "Runtime": "edgepeft.runtime.runtime:Runtime",
        "TrainOptions": "edgepeft.training.options:TrainOptions",
        "TuneOptions": "edgepeft.tuning.target:TuneOptions",
        "export": "edgepeft.cli._functions:export",
        "train": "edgepeft.cli._functions:train",
        "tune": "edgepeft.tuning.tune:tune",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'edgepeft' has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        with requiring("train", f"edgepeft.{name}"):
            return getattr(import_module(module), attribute)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
