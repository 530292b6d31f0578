"""edgepeft: many parameter-efficient tasks on one frozen Transformer, on one small board.

    train("all-MiniLM-L6-v2", "lora", "reviews.csv", TrainOptions(task="mood"), "mood")
    export("all-MiniLM-L6-v2", ["mood"], "bundle", trainable=True)
    tune("bundle", "mood", "more.csv")
    Runtime("bundle").predict("mood", ["The soup was cold."])

Each name is imported when it is first read: importing edgepeft loads neither PyTorch nor ONNX Runtime.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from edgepeft.errors import requiring

__version__ = "0.1.0"
__all__ = ["Bundle", "Runtime", "TrainOptions", "TuneOptions", "__version__", "export", "train", "tune"]

if TYPE_CHECKING:
    from edgepeft.exporting.bundle import export_bundle as export
    from edgepeft.runtime.bundle import Bundle
    from edgepeft.runtime.runtime import Runtime
    from edgepeft.runtime.tuning.options import TuneOptions
    from edgepeft.runtime.tuning.tune import tune
    from edgepeft.training.loop import train
    from edgepeft.training.options import TrainOptions
else:
    _HOMES = {
        "Bundle": "edgepeft.runtime.bundle:Bundle",
        "Runtime": "edgepeft.runtime.runtime:Runtime",
        "TrainOptions": "edgepeft.training.options:TrainOptions",
        "TuneOptions": "edgepeft.runtime.tuning.options:TuneOptions",
        "export": "edgepeft.exporting.bundle:export_bundle",
        "train": "edgepeft.training.loop:train",
        "tune": "edgepeft.runtime.tuning.tune:tune",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'edgepeft' has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        with requiring("train", f"edgepeft.{name}"):
            return getattr(import_module(module), attribute)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
