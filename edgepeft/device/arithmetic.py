"""What a processor cannot do in hardware, and what smaller weights then cost or save on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgepeft.device.host import groups
from edgepeft.device.host.machine import DOT_PRODUCT, cpu_model, isa_flags, lacks_dot_product

if TYPE_CHECKING:  # a board that answers needs no profiles
    from edgepeft.device.profile_schema import Profile

__all__ = ["ONNXRUNTIME", "Processor", "missing_arithmetic", "of_host", "of_profile"]

ONNXRUNTIME = "onnxruntime"  # the runtime of a published figure
_HALF = ("fphp", "asimdhp")  # arithmetic on 16-bit floating-point numbers


@dataclass(frozen=True)
class Processor:
    """A device's name, and which arithmetic it is known to lack."""

    name: str
    lacks_dot_product: bool
    lacks_half: bool
    profile: Profile | None = None


def of_profile(profile: Profile) -> Processor:
    """The processor of a profile; an instruction that the profile does not mention counts as there."""
    absent, present = set(profile.isa.absent), set(profile.isa.value)
    no_dot, no_half = (bool(absent & set(names)) and not present & set(names) for names in (DOT_PRODUCT, _HALF))
    return Processor(profile.name, no_dot, no_half, profile)


def of_host(proc: Path = groups.PROC) -> Processor:
    """This host, if it is an Arm one: on others ONNX Runtime has other 8-bit kernels."""
    flags = set(isa_flags(proc))
    return Processor(cpu_model(proc), lacks_dot_product(proc), "asimd" in flags and not flags & set(_HALF))


def missing_arithmetic(processor: Processor, *, weights: str, fp16: bool) -> list[str]:
    """A sentence for each kind of weights that is stored and that the processor has no arithmetic for: the backbone's
    ``weights``, and a delta's in half precision.
    """
    costs = []
    if weights == "int8" and processor.lacks_dot_product:
        costs.append(
            f"int8 on {processor.name}: it has no dot product ({DOT_PRODUCT[0]}), so 8-bit numbers are widened before "
            f"they are multiplied. The file is a quarter of the size; {_published(processor.profile)}"
        )
    if weights == "int4" and processor.lacks_dot_product:
        costs.append(
            f"int4 on {processor.name}: it has no dot product ({DOT_PRODUCT[0]}), so 4-bit numbers are widened to fp32 "
            "before they are multiplied. The file is small; whether time is lost must be measured there: edgepeft "
            "bench --profile, on the board."
        )
    if fp16 and processor.lacks_half:
        costs.append(
            f"half precision on {processor.name}: it has no fp16 arithmetic ({_HALF[0]}), so values are widened to "
            "fp32 when they are loaded. The file is half the size; neither time nor memory is saved."
        )
    return costs


def _published(profile: Profile | None) -> str:
    """What int8 gained on the device: with ONNX Runtime, and where nothing is known of that with any other."""
    latencies = () if profile is None else profile.latencies
    pairs = [
        (slow, fast)
        for fast in latencies
        for slow in latencies
        if (slow.precision, fast.precision, slow.kind, fast.kind) == ("fp32", "int8", "measured", "measured")
        and (slow.model, slow.runtime, slow.threads) == (fast.model, fast.runtime, fast.threads)
    ]
    if not pairs:
        return "whether it is faster at all must be measured there: edgepeft bench --profile, on the board."
    own = [pair for pair in pairs if pair[0].runtime == ONNXRUNTIME]
    gains = []
    for slow, fast in own or pairs:
        threads = "" if fast.threads is None else f", {fast.threads} thread{'s' * (fast.threads > 1)}"
        times = f"{slow.value:g} -> {fast.value:g} ms, {fast.runtime}{threads}"
        gains.append(f"{fast.model} {slow.value / fast.value:.2f}x ({times})")
    return f"published gains there: {', '.join(gains)}{'' if own else '; with ONNX Runtime nothing is known'}."
