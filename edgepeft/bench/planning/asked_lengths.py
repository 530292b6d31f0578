"""How long a benchmark's texts are: as was asked, else as the scenario says, and no longer than the model takes."""

from __future__ import annotations

from collections.abc import Sequence

from edgepeft.bench.planning.batches import Lengths, full_length, load_lengths
from edgepeft.bench.planning.request import BenchRequest
from edgepeft.bench.planning.scenario import Order, Scenario
from edgepeft.bench.planning.subject import BenchSubject
from edgepeft.errors import UsageError

__all__ = ["lengths_of", "ordered"]


def lengths_of(request: BenchRequest, scenario: Scenario, subject: BenchSubject) -> tuple[Lengths, list[str]]:
    """Lengths that the model takes, and what to say about them."""
    prompt = max((task.prompt_length for task in subject.model.tasks), default=0)
    longest = subject.architecture.max_length - prompt
    source = request.lengths or (scenario.lengths if request.length is None else None)
    if source is None:
        length = request.length or scenario.sequence_length
        if length > longest:
            raise UsageError(f"--length {length}: {subject.name} takes at most {longest} tokens{_beside(prompt)}.")
        return full_length(length, request.batch_size or scenario.batch_size), []
    lengths = load_lengths(source, seed=request.seed)
    cut = sum(n > longest for n in lengths.values)
    said = f"{cut} texts are longer than {subject.name} takes and were cut to {longest} tokens{_beside(prompt)}"
    return lengths.clamped(longest), [said] if cut else []


def _beside(prompt: int) -> str:
    return f" beside a prompt of {prompt}" if prompt else ""


def ordered(lengths: Sequence[int], scenario: Scenario) -> Sequence[int]:
    """In the scenario's order."""
    return sorted(lengths) if scenario.order is Order.SORTED else lengths
