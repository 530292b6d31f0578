"""Files of a repository over HTTP, of the Hugging Face Hub or of a folder, for tuf's ``Updater``.

Broken downloads go on, slow ones end.

A target's name has its hash, so what came of it is kept and continued by a Range request (RFC 9110, 14.2).  tuf bounds
lengths and compares hashes; here is only how bytes come.

``_Pace`` bounds all that is sent for a transfer, as the socket gives it, so heads, interim answers, redirections, chunk
extensions and further tries count too: its bytes, and as curl's --speed-limit the least that comes in each half minute.
"""

import contextlib
import http.client
import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
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
from edgepeft.common.errors import UsageError, requiring
from edgepeft.common.resources import sha256_of

_CHUNK_BYTES = 64 << 10
_WINDOW_S, _MIN_BYTES_S = 30.0, 1000.0  # slower than a modem for half a minute is no download
HUB = "hub://"  # an address of ours: hub://owner/name@revision
_AROUND_BYTES = 64 << 10  # for heads; a body may take twice its bytes, in small chunks


def address_of(repository: str) -> str:
    """A repository's URL: as it is given, or that of a folder."""
    if repository.startswith(("http://", "https://", HUB)):
        return repository
    if "://" in repository or not Path(repository).is_dir():
        raise UsageError(
            f"{repository} is no folder; a repository is one, or a URL that begins with https:// or http://."
        )
    return Path(repository).absolute().as_uri()


def hub_address(name: str) -> str:
    """The address of ``owner/name`` or ``owner/name@revision``."""
    repository, _, revision = name.partition("@")
    named = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repository, re.ASCII)
    if not named or not re.fullmatch(r"[\w./-]*", revision, re.ASCII):
        raise UsageError(f"{name!r} is no name on the Hub; give OWNER/NAME or OWNER/NAME@REVISION.")
    return f"{HUB}{repository}@{revision or 'main'}"


class Fetcher(FetcherInterface):  # type: ignore[misc,unused-ignore]  # without tuf it is Any
    """Counts requests and bytes; what is below the address ``resumable`` is kept in ``folder`` until it is whole."""

    def __init__(self, folder: Path, resumable: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._resumable, self._clock = folder, resumable, clock
        self._pool: Any = None
        self._pace = _Pace("", 0, clock)
        self.requests = self.n_bytes = 0

    def _fetch(self, url: str) -> Iterator[bytes]:
        return self._from(url, 0)[1]

    @contextlib.contextmanager
    def download_file(self, url: str, max_length: int) -> Iterator[IO[bytes]]:
        """As ``FetcherInterface``'s, going on where an earlier try broke off."""
        self._pace = _Pace(url, max_length, self._clock)
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
        have = 0
        with contextlib.suppress(FileNotFoundError):
            status = partial.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:  # and no other name of some file
                have = status.st_size
        if have == max_length and sha256_of(partial) == partial.stem:
            return
        have = have if have < max_length else 0
        start, chunks = self._from(url, have)
        resumed = start > 0
        if not resumed:
            partial.unlink(missing_ok=True)
        with partial.open("r+b" if resumed else "xb") as file:
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
        if not url.startswith("file:"):
            return self._of_http(url, start)
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
        return start, self._counted(url, file, file.read1)

    def _of_http(self, url: str, start: int, more: Mapping[str, str] | None = None) -> tuple[int, Iterator[bytes]]:
        """As ``_from``; ``more`` are further fields of the request."""
        if self._pool is None:
            self._pool = _pool(url, lambda sock, **how: _Answer(sock, self._pace, **how))
        headers = {"user-agent": f"edgepeft/{__version__}", "accept-encoding": "identity", **(more or {})}
        headers |= {"Range": f"bytes={start}-"} if start else {}
        try:
            answer = self._pool.request("GET", url, headers=headers, preload_content=False, decode_content=False)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise DownloadError(f"{url}: {_reason(error)}") from error
        if answer.status == 416 and start:  # what is here is no beginning of what is there
            answer.close()
            return self._of_http(url, 0, more)
        if answer.status >= 400:
            answer.close()
            why = f" ({answer.headers['X-Error-Code']:.40})" if "X-Error-Code" in answer.headers else ""  # the Hub's
            said = f"{url}: HTTP status {answer.status}{why}"
            raise DownloadHTTPError(said, answer.status) if answer.status < 500 else DownloadError(said)
        goes_on = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if answer.status == 206 and not goes_on:
            answer.close()
            raise DownloadError(f"{url}: another part was sent than was asked for")
        read = lambda most: bytes(answer.read1(most, decode_content=False))  # noqa: E731
        return start if goes_on else 0, self._counted(url, answer, read)

    def _counted(self, url: str, source: Any, read: Callable[[int], bytes]) -> Iterator[bytes]:
        """The pieces of a file or an answer, as they come."""
        with contextlib.closing(source):
            while True:
                try:
                    chunk = read(_CHUNK_BYTES)
                except (urllib3.exceptions.HTTPError, OSError) as error:
                    raise DownloadError(f"{url} broke off ({_reason(error)})") from error
                if not chunk:
                    return
                self.n_bytes += len(chunk)
                yield chunk


class HubFetcher(Fetcher):
    """Files at the addresses that ``huggingface_hub`` names, with its token, at our pace."""

    def __init__(self, folder: Path, resumable: str) -> None:
        with requiring("hub", "the Hub"):
            import huggingface_hub
            import huggingface_hub.constants  # the package itself does not import it
        self._hub: Any = huggingface_hub
        super().__init__(folder, resumable)

    def _from(self, url: str, start: int) -> tuple[int, Iterator[bytes]]:
        if self._hub.constants.HF_HUB_OFFLINE:
            raise DownloadError(f"{url}: HF_HUB_OFFLINE is set")
        self.requests += 1
        owner, name, file = url.removeprefix(HUB).split("/", 2)
        name, _, revision = name.partition("@")
        # A revision such as refs/pr/1 has slashes, and our files are two folders' alone.
        parts = re.fullmatch(r"(?:(.*)/)??((?:metadata|targets)/.*)", file)
        assert parts is not None, "the updater asks for metadata and targets"
        revision = "/".join(filter(None, (revision, parts[1])))
        place = self._hub.hf_hub_url(f"{owner}/{name}", parts[2], revision=revision)
        return self._of_http(place, start, self._hub.utils.build_hf_headers())


class _Pace:
    """The limits of one transfer of at most ``most`` bytes, in so many tries as there are."""

    def __init__(self, url: str, most: int, clock: Callable[[], float]) -> None:
        self._url, self._most, self._clock = url, _AROUND_BYTES + 2 * most, clock
        self._n_bytes = self._in_window = 0
        self._began = clock()  # the window

    def left_s(self) -> float:
        """Seconds until more must be there."""
        past = self._clock() - self._began
        if past >= _WINDOW_S:
            if self._in_window < _WINDOW_S * _MIN_BYTES_S:
                raise SlowRetrievalError(f"{self._url}: {self._in_window} bytes came in {_WINDOW_S:g} s")
            self._began, self._in_window, past = self._clock(), 0, 0.0
        return _WINDOW_S - past

    def count(self, n_bytes: int) -> None:
        """So many more came."""
        self._n_bytes += n_bytes
        self._in_window += n_bytes
        if self._n_bytes > self._most:
            raise DownloadLengthMismatchError(f"{self._url}: more than {self._most:,} bytes were sent, all told")


class _Paced(io.RawIOBase):
    """What a socket receives, at a pace; ``raw`` is what is closed with it."""

    def __init__(self, raw: io.RawIOBase, sock: Any, pace: _Pace) -> None:
        self._raw, self._sock, self._pace = raw, sock, pace

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            self._sock.settimeout(self._pace.left_s())
            with contextlib.suppress(TimeoutError):
                found: int = self._sock.recv_into(buffer)
                self._pace.count(found)
                return found

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    """An answer at a pace, without trailers."""

    def __init__(self, sock: Any, pace: _Pace, **how: Any) -> None:
        super().__init__(sock, **how)
        self.fp = io.BufferedReader(_Paced(self.fp.detach(), sock, pace), _CHUNK_BYTES)

    def _read_and_discard_trailer(self) -> None:
        if self.fp.readline(3) not in (b"\r\n", b"\n", b""):
            raise DownloadError("there are trailers behind the body, which nobody asked for")


def _pool(url: str, answer: Callable[..., _Answer]) -> Any:
    """Connections whose answers are made by ``answer``, by a proxy where the environment names one."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    options: dict[str, Any] = {
        "timeout": urllib3.Timeout(_WINDOW_S),
        # A server may ask for hours of patience, in which nothing would be said.
        "retries": urllib3.Retry(2, redirect=3, backoff_factor=0.5, respect_retry_after_header=False),
    }
    proxy = getproxies().get(parts.scheme)
    if proxy is None or proxy_bypass(parts.hostname or ""):
        pool: Any = urllib3.PoolManager(**options)
    else:
        pool = urllib3.ProxyManager(proxy, **options)
    kinds = dict(pool.pool_classes_by_scheme)
    for scheme, kind in kinds.items():
        connection = type("Connection", (kind.ConnectionCls,), {"response_class": staticmethod(answer)})
        kinds[scheme] = type("Pool", (kind,), {"ConnectionCls": connection})
    pool.pool_classes_by_scheme = kinds
    return pool


def _reason(error: Exception) -> str:
    """What a failed connection says, without its wrapping."""
    inner = getattr(error, "reason", None) or error
    return str(inner).partition(": ")[2] if "object at 0x" in str(inner) else str(inner)
