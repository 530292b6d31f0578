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
        "Bundle": "edgepeft.bundle.bundle:Bundle",
        "EvalOptions": "edgepeft.options.verbs:EvalOptions",
        "ExportOptions": "edgepeft.options.verbs:ExportOptions",
        "LocalTuner": "edgepeft.tuning.federated:LocalTuner",
        "Runtime": "edgepeft.runtime.runtime:Runtime",
        "TrainOptions": "edgepeft.options.verbs:TrainOptions",
        "TuneOptions": "edgepeft.options.verbs:TuneOptions",
        "TuneSettings": "edgepeft.options.verbs:TuneSettings",
        "evaluate": "edgepeft.runtime.evaluate:evaluate",
        "export": "edgepeft.training.exporting.bundle:export",
        "load": "edgepeft.runtime.runtime:Runtime",
        "train": "edgepeft.training.loop:train",
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
