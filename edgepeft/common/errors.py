"""Every error that edgepeft raises on purpose, with the exit code the command line gives it.

    EdgepeftError                 1  failed
    ├── UsageError                2  the command was wrong
    │   ├── UnknownName           2  no method, profile, site or task of that name
    │   └── Unwritable            2  a text that no token can begin or go on with: no position, no such schema
    ├── DataError                 1  a data file's content
    ├── BundleError               1  a bundle, delta or checkpoint: damaged, foreign, of another version
    ├── MissingPackage            1  an extra or a data package is not installed
    ├── VerificationFailed        3  ONNX Runtime and PyTorch disagree, or a hash does
    ├── ThroughputRegression      4  slower beyond noise
    └── DoesNotFit                5  more memory than the device has

A message states the request, what is wrong with it, and what to do.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from edgepeft.common.messages import first_of

T = TypeVar("T")
_MAX_NAMES = 40  # a bundle may hold a thousand tasks


class EdgepeftError(Exception):
    """Base of all expected errors; the command line prints it without a traceback."""

    exit_code: ClassVar[int] = 1


class UsageError(EdgepeftError):
    """The command is wrong: an option, a name, a path that does not exist."""

    exit_code: ClassVar[int] = 2


class UnknownName(UsageError):
    """A name that is not known; the message offers the nearest known ones."""

    def __init__(self, kind: str, asked: str, known: Iterable[str]):
        names = sorted(known)
        lower = {name.lower(): name for name in names}
        close = get_close_matches(str(asked).lower(), lower, n=1, cutoff=0.5)
        hint = f" Did you mean {lower[close[0]]!r}?" if close else ""
        super().__init__(f"no {kind} is called {asked!r}.{hint} Known: {first_of(names, _MAX_NAMES) or 'none'}.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Cross processes as the message: the names are not kept."""
        return Exception.__new__, (type(self), *self.args)


class Unwritable(UsageError):
    """A text that cannot be written as it is asked for; the message names nothing of this machine."""


def look_up(kind: str, asked: str, known: Mapping[str, T]) -> T:
    """Return what ``known`` has by that name; refuse a name that it has not."""
    if not isinstance(asked, str) or asked not in known:
        raise UnknownName(kind, asked, known)
    return known[asked]


class DataError(EdgepeftError):
    """A data file whose content cannot be used."""


class BundleError(EdgepeftError):
    """A bundle, delta or checkpoint that is damaged, foreign or of an unknown version."""


class MissingPackage(EdgepeftError):
    """An optional package is not installed; the message has the command that installs it."""


@contextmanager
def requiring(extra: str, what: str) -> Iterator[None]:
    """Import optional packages within the block."""
    try:
        yield
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise MissingPackage(f"{what} needs {package}: pip install 'edgepeft[{extra}]'.") from error


class VerificationFailed(EdgepeftError):
    """The deployed artefact does not give what PyTorch gave."""

    exit_code: ClassVar[int] = 3


class ThroughputRegression(EdgepeftError):
    """A benchmark is slower than its base beyond noise."""

    exit_code: ClassVar[int] = 4


class DoesNotFit(EdgepeftError):
    """The work needs more memory than the device has."""

    exit_code: ClassVar[int] = 5


# What Python, C, C++, NumPy, ONNX Runtime, PyTorch and the loader say when an address-space limit is hit.
_OUT_OF_MEMORY = re.compile(
    r"memoryerror|bad_alloc|bad allocation|(failed to|can't|cannot) allocate memory|unable to allocate"
    r"|failed to map segment|not enough memory|out of memory",
    re.IGNORECASE,
)


def says_out_of_memory(words: str) -> bool:
    """Whether an error's message, or a program's last words, are of an allocation that was refused."""
    return _OUT_OF_MEMORY.search(words) is not None
