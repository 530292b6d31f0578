"""edgepeft: many parameter-efficient tasks on one frozen Transformer, on one small board.

    train(backbone="all-MiniLM-L6-v2", data="reviews.csv", task="mood", method="lora", out="mood")
    export(backbone="all-MiniLM-L6-v2", delta="mood", out="bundle")
    tune(bundle="bundle", task="mood", data="more.csv")
    evaluate(bundle="bundle", task="mood", data="test.csv").score
    load("bundle").predict("mood", ["The soup was cold."])

Each name is imported when it is first read: importing edgepeft loads neither PyTorch nor ONNX Runtime.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from edgepeft.common.errors import requiring

__version__ = "0.1.0"
__all__ = [
    "Bundle",
    "EvalOptions",
    "ExportOptions",
    "LocalTuner",
    "Runtime",
    "TrainOptions",
    "TuneOptions",
    "TuneSettings",
    "__version__",
    "evaluate",
    "export",
    "load",
    "train",
    "tune",
]

if TYPE_CHECKING:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.options.verbs import EvalOptions, ExportOptions, TrainOptions, TuneOptions, TuneSettings
    from edgepeft.runtime.evaluate import evaluate
    from edgepeft.runtime.runtime import Runtime
    from edgepeft.training.exporting.bundle import export
    from edgepeft.training.loop import train
    from edgepeft.tuning.federated import LocalTuner
    from edgepeft.tuning.tune import tune

    load = Runtime
else:
    _HOMES = {
        "Bundle": "bundle.bundle",
        "LocalTuner": "tuning.federated",
        "Runtime": "runtime.runtime",
        "evaluate": "runtime.evaluate",
        "export": "training.exporting.bundle",
        "load": "runtime.runtime",
        "train": "training.loop",
        "tune": "tuning.tune",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'edgepeft' has no attribute {name!r}")
        with requiring("train", f"edgepeft.{name}"):
            home = import_module(f"edgepeft.{_HOMES.get(name, 'options.verbs')}")
        return home.Runtime if name == "load" else getattr(home, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
