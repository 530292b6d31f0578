"""Files of a repository over HTTP or from a folder, for tuf's ``Updater``: broken downloads go on, slow ones end.

A target's name has its hash, so what came of it is kept and continued by a Range request (RFC 9110, 14.2).  tuf bounds
lengths and compares hashes; here is only how bytes come.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import urllib3
from tuf.api.exceptions import (
    DownloadError,
    DownloadHTTPError,
    DownloadLengthMismatchError,
    LengthOrHashMismatchError,
    SlowRetrievalError,
)
from tuf.ngclient import FetcherInterface

from edgepeft import __version__
from edgepeft.common.errors import UsageError
from edgepeft.common.resources import sha256_of

__all__ = ["Fetcher", "address_of"]

_CHUNK_BYTES = 64 << 10
_SILENCE_S = 30.0  # between two pieces
_ANSWER_S = 60.0  # until an answer's head is whole
_GRACE_S, _LEAST_BYTES_S = 30.0, 1000.0  # slower than a modem after half a minute is no download


def address_of(repository: str) -> str:
    """A repository's URL: as it is given, or that of a folder."""
    if repository.startswith(("http://", "https://", "hub://")):
        return repository
    if "://" in repository or not Path(repository).is_dir():
        raise UsageError(
            f"{repository} is no folder; a repository is one, or a URL that begins with https:// or http://."
        )
    return Path(repository).absolute().as_uri()


class Fetcher(FetcherInterface):  # type: ignore[misc,unused-ignore]  # without tuf it is Any
    """Counts requests and bytes; what is below the address ``resumable`` is kept in ``folder`` until it is whole."""

    def __init__(self, folder: Path, resumable: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._resumable, self._clock = folder, resumable, clock
        self._pool: Any = None
        self.requests = self.n_bytes = 0

    def _fetch(self, url: str) -> Iterator[bytes]:
        return self._from(url, 0)[1]

    @contextlib.contextmanager
    def download_file(self, url: str, max_length: int) -> Iterator[IO[bytes]]:
        """As ``FetcherInterface``'s, going on where an earlier try broke off."""
        if not url.startswith(self._resumable):
            with super().download_file(url, max_length) as file:
                yield file
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f"{url.rpartition('/')[2].partition('.')[0]}.part"
        try:
            self._go_on(url, max_length, partial)
            with partial.open("rb") as file:
                yield file
        except (LengthOrHashMismatchError, DownloadLengthMismatchError, OSError):
            partial.unlink(missing_ok=True)  # wrong, or no room for it
            raise
        partial.unlink(missing_ok=True)

    def _go_on(self, url: str, max_length: int, partial: Path) -> None:
        """Bring a partial file to its end; from its beginning again where what is there is no beginning of it."""
        have = partial.stat().st_size if partial.is_file() else 0
        if have == max_length and sha256_of(partial) == partial.stem:
            return
        have = have if have < max_length else 0
        start, chunks = self._from(url, have)
        resumed = start > 0
        with partial.open("r+b" if resumed else "wb") as file:
            file.seek(start)
            file.truncate()
            for chunk in chunks:
                start += len(chunk)
                if start > max_length:
                    raise DownloadLengthMismatchError(f"{url} has more than the {max_length} bytes that are signed")
                file.write(chunk)
        if start < max_length:
            raise DownloadError(f"{url} broke off after {start} of {max_length} bytes")
        if resumed and sha256_of(partial) != partial.stem:  # its beginning was another file's, or altered
            partial.unlink()
            self._go_on(url, max_length, partial)

    def _from(self, url: str, start: int) -> tuple[int, Iterator[bytes]]:
        """Where an answer begins, ``start`` or 0, and its pieces."""
        self.requests += 1
        return self._of_file(url, start) if url.startswith("file:") else self._of_http(url, start)

    def _of_file(self, url: str, start: int) -> tuple[int, Iterator[bytes]]:
        path = Path(url2pathname(urlsplit(url).path))
        try:
            # Without waiting for a FIFO's other end.
            file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        except FileNotFoundError as error:
            raise DownloadHTTPError(f"{path} is not there", 404) from error
        except OSError as error:
            raise DownloadError(f"{path} cannot be read ({error.strerror})") from error
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise DownloadError(f"{path} is no regular file")
        file.seek(start)
        return start, self._counted(url, file)

    def _of_http(self, url: str, start: int) -> tuple[int, Iterator[bytes]]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        answer = self._head(url, headers)
        if answer.status == 416 and start:  # what is here is no beginning of what is there
            answer.close()
            return self._of_http(url, 0)
        if answer.status >= 400:
            answer.close()
            raise DownloadHTTPError(f"{url}: HTTP status {answer.status}", answer.status)
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if answer.status == 206 and not goes_on:
            answer.close()
            raise DownloadError(f"{url}: another part was sent than was asked for")
        return start if goes_on else 0, self._counted(url, answer)

    def _head(self, url: str, headers: dict[str, str]) -> Any:
        """An answer whose body was not read, its head within a minute: the socket's own limit is of each piece."""
        if self._pool is None:
            self._pool = _pool(url)
        found: list[Any] = []

        def ask() -> None:
            try:
                found.append(
                    self._pool.request("GET", url, headers=headers, preload_content=False, decode_content=False)
                )
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_ANSWER_S)
        if not found:
            raise SlowRetrievalError(f"{url}: no whole answer within {_ANSWER_S:g} s")
        if isinstance(found[0], Exception):
            raise DownloadError(f"{url}: {_reason(found[0])}") from found[0]
        return found[0]

    def _counted(self, url: str, source: Any) -> Iterator[bytes]:
        """The pieces of a file or an answer, as they come; too slow a source is left."""
        began, came = self._clock(), 0
        read = source.read1 if isinstance(source, io.BufferedReader) else _reader(source)
        with contextlib.closing(source):
            while chunk := self._piece(url, read):
                came += len(chunk)
                self.n_bytes += len(chunk)
                yield chunk
                if (took := self._clock() - began) > _GRACE_S and came < took * _LEAST_BYTES_S:
                    raise SlowRetrievalError(f"{url}: {came} bytes in {took:.0f} s is too slow")

    def _piece(self, url: str, read: Callable[[int], bytes]) -> bytes:
        try:
            return read(_CHUNK_BYTES)
        except urllib3.exceptions.TimeoutError as error:
            raise SlowRetrievalError(f"{url}: nothing came for {_SILENCE_S:g} s") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise DownloadError(f"{url} broke off ({_reason(error)})") from error


def _reader(answer: Any) -> Callable[[int], bytes]:
    """Reads what has come, without waiting for a whole piece of it."""
    return lambda most: bytes(answer.read1(most, decode_content=False))


def _pool(url: str) -> Any:
    """Connections, by a proxy where the environment names one."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    options: dict[str, Any] = {
        "timeout": urllib3.Timeout(_SILENCE_S),
        "retries": urllib3.Retry(2, redirect=3, backoff_factor=0.5),
        "headers": {"User-Agent": f"edgepeft/{__version__}", "Accept-Encoding": "identity"},
    }
    proxy = getproxies().get(parts.scheme)
    if proxy is None or proxy_bypass(parts.hostname or ""):
        return urllib3.PoolManager(**options)
    return urllib3.ProxyManager(proxy, **options)


def _reason(error: Exception) -> str:
    """What a failed connection says, without its wrapping."""
    inner = getattr(error, "reason", None) or error
    return str(inner).partition(": ")[2] if "object at 0x" in str(inner) else str(inner)
