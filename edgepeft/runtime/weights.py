"""How a bundle's sessions reach their weights: one prepacked file for all of them, or each its own copy."""

from __future__ import annotations

import contextlib
import warnings

import onnx
import onnxruntime as ort

from edgepeft.errors import BundleError, EdgepeftError, UsageError
from edgepeft.resources import file_identity
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.prepacked import Prepacked, hold_prepacked
from edgepeft.runtime.session import open_session

__all__ = ["Weights"]


class Weights:
    """Opens sessions on a bundle's graphs; the cache is looked for with the first one.

    Not to be called from two threads at once.
    """

    def __init__(self, bundle: Bundle, *, cache: bool, threads: int | None) -> None:
        self.bundle, self.threads = bundle, threads
        self._cache = cache
        self._prepacked: Prepacked | None = None

    def prepare(self) -> None:
        """Find or build the prepacked weights; without them, say so once and go on with the bundle's own."""
        if not self._cache or self._prepacked is not None:
            return
        try:
            self._prepacked = hold_prepacked(self.bundle)
        except (BundleError, UsageError):
            raise
        except (OSError, EdgepeftError) as error:
            self._cache = False
            warnings.warn(
                f"the weights are not shared between tasks: no prepacked copy can be kept ({error}). EDGEPEFT_CACHE "
                "names another folder for it; --no-cache does without.",
                RuntimeWarning,
                stacklevel=2,
            )
            return
        self.bundle.sound_weights |= self._prepacked.seen()

    def open(self, model: onnx.ModelProto) -> ort.InferenceSession:
        """A session on a graph of the bundle, which is changed.

        Raises:
            BundleError: the weights are not the manifest's, or ONNX Runtime refuses the graph.
        """
        checkpoint = self.bundle.checkpoint
        if self._prepacked is None:
            return open_session(model, self.bundle.folder, self.threads)
        self._remember(self._prepacked)
        self._prepacked.place(model, checkpoint)
        return open_session(model, self._prepacked.folder, self.threads)

    def _remember(self, prepacked: Prepacked) -> None:
        with contextlib.suppress(OSError, EdgepeftError):  # a folder that cannot be written: hashed again next time
            identity = file_identity(self.bundle.weights)
            if identity not in prepacked.seen():
                prepacked.remember(identity)

    def close(self) -> None:
        """Let the cache's entry go."""
        if self._prepacked is not None:
            self._prepacked.close()
            self._prepacked = None
