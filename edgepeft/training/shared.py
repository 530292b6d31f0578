"""Hidden states of the frozen backbone that runs have in common, in a folder: the first that needs them leaves them.

What a linear head or its baseline reads is the same for every method, rate and seed on the same rows, and costs a pass
over all of them.  A file is named by the hash of all that its values depend on, tokens included, so no run can take
another's, and a run has the same bits whether it computes or reads.  Two that need a file at once both compute it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgepeft.common.atomic import write_atomically

__all__ = ["SharedStates"]


@dataclass(frozen=True)
class SharedStates:
    """The states of one backbone, by the digest of its weights, in ``folder``; ``attention`` is that of its model."""

    folder: Path
    backbone: str
    attention: str | None = None

    def of(
        self, inputs: Mapping[str, Tensor], pooling: str, compute: Callable[[], NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """[token rows, d] for these inputs of the model, read where they are there and left there where not."""
        path = self.folder / f"{self._name(inputs, pooling)}.npy"
        try:
            found: NDArray[np.float32] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):  # not there, or damaged
            np.save(file := io.BytesIO(), found := compute())
            write_atomically(path, file.getvalue())
        return found

    def _name(self, inputs: Mapping[str, Tensor], pooling: str) -> str:
        # The last bits follow from the device, the number of threads, the attention and who computes.
        how = [next(iter(inputs.values())).device.type, torch.get_num_threads(), self.attention]
        digest = hashlib.sha256(
            json.dumps([self.backbone, pooling, *how, *map(version, ("torch", "transformers"))]).encode()
        )
        for name, values in sorted(inputs.items()):
            digest.update(json.dumps([name, str(values.dtype), list(values.shape)]).encode())
            digest.update(values.cpu().numpy().tobytes())
        return digest.hexdigest()
