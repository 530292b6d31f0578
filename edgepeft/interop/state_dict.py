"""Tensors of a foreign file, as float32; pickles only through torch's restricted unpickler, which runs no code."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from edgepeft.errors import BundleError

__all__ = ["read_state_dict"]


def read_state_dict(folder: Path, *names: str) -> dict[str, Tensor]:
    """The first of these files that is there, safetensors or a torch pickle.

    Raises:
        BundleError: none is there, damaged, with code in it, or not a dictionary of floating-point tensors.
    """
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise BundleError(f"{folder} has neither {' nor '.join(names)}; the checkpoint is not complete.")
    try:
        state = load_file(path) if path.suffix == ".safetensors" else _unpickled(path)
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path} is damaged ({error}); fetch it again.") from error
    if not isinstance(state, dict):
        raise BundleError(f"{path} holds {type(state).__name__}; a dictionary of tensors was expected.")
    odd = [str(name) for name, value in state.items() if not (isinstance(value, Tensor) and value.is_floating_point())]
    if odd:
        raise BundleError(f"{path} holds what is no floating-point tensor: {', '.join(odd)}.")
    return {str(name): tensor.detach().float().contiguous() for name, tensor in state.items()}


def _unpickled(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle's versions; what cannot be read is an error below
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and attribute errors: all mean that it is no state dict
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BundleError(
            f"{path} is no plain dictionary of tensors, and code in it is never run ({reason[:200]})."
        ) from error
