"""What a service is started with: its limits, where it listens, and who may ask."""

from __future__ import annotations

import ipaddress
import logging
import os
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from edgepeft.common.errors import UsageError
from edgepeft.device.machine import thread_count

log = logging.getLogger("edgepeft.serve")

_MIN_TOKEN = 16  # characters: 64 bits even where they are hexadecimal
_MAX_TOKEN = 4096


@dataclass(frozen=True)
class ServiceLimits:
    """Bounds of everything that a client can make grow."""

    body_bytes: int = 1 << 20
    header_bytes: int = 16 << 10  # of one request, all headers together
    text_characters: int = 20_000  # of one text; a task reads its first few hundred tokens
    rows: int = 64  # of one request
    queued_rows: int = 256  # of all that wait; more are refused with 429
    batch_rows: int = 32  # that run together
    wait_s: float = 0.005  # that the first row of a batch waits for others, while others are to be expected
    deadline_s: float = 30.0  # of a request, from its last byte to its answer
    read_s: float = 10.0  # for a request's headers, and again for its body
    write_s: float = 30.0  # that an answer waits for the client to read it
    connections: int = 256
    connections_per_address: int = 64  # of another machine's
    bodies: int = 32  # as large as one may be, that are held at once; those up to 64 KiB do not count
    tuning_rows: int = 20_000  # of a request to fine-tune
    trial_s: float = 10.0  # of processor time for a task's trial, and that the start waits for all of them

    def __post_init__(self) -> None:
        if self.rows > self.queued_rows:
            raise UsageError(
                f"a request may hold {self.rows} rows, the queue {self.queued_rows}: give the queue at least as many."
            )


@dataclass(frozen=True)
class Settings:
    """One service."""

    bundle: Path
    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    insecure: bool = False
    allow_tuning: bool = False
    public_key: Path | None = None  # the PEM file of whoever must have signed the bundle
    threads: int | None = None
    workers: int = 1  # batches that run at once, each on its share of the threads
    cache: bool = True
    watch: bool = True
    limits: ServiceLimits = field(default_factory=ServiceLimits)

    def __post_init__(self) -> None:
        if not self.loopback and self.token is None and not self.insecure:
            raise UsageError(
                f"--host {self.host} is reached from other machines: give --token-file FILE, whose token every request "
                "must carry, or --insecure to answer anybody."
            )
        if self.workers > thread_count(self.threads):
            raise UsageError(
                f"--workers {self.workers} need a thread each; there are {thread_count(self.threads)} here, by the "
                "processors, the limits in force and --threads. Give fewer."
            )
        if self.allow_tuning and self.public_key is not None:
            raise UsageError(
                "--allow-tuning would put tasks into the bundle that nobody signed, and --require-signature would "
                "refuse them. Give one of the two."
            )

    @property
    def threads_of_a_batch(self) -> int:
        """Its share of those that there may be."""
        return max(1, thread_count(self.threads) // self.workers)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)


@lru_cache(64)  # asked twice a request
def is_loopback(host: str) -> bool:
    """Whether a name or address leads to this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name: where it leads is not ours to guess
        return False


def read_token(path: Path) -> str:
    """The token that a file holds; spaces and newlines around it do not count."""
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                log.warning("%s can be read by other users of this machine; chmod 400 it.", path)
            token = file.read(_MAX_TOKEN + 2).decode("ascii").strip()
    except OSError as error:
        raise UsageError(f"the token file {path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError:
        token = ""
    if not (_MIN_TOKEN <= len(token) <= _MAX_TOKEN and all("!" <= c <= "~" for c in token)):
        raise UsageError(
            f"{path} holds no token: one word of {_MIN_TOKEN} to {_MAX_TOKEN} printable ASCII characters is needed. "
            f"Make one with: openssl rand -hex 32 > {path}"
        )
    return token
