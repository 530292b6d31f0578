"""What a service is started with: its limits, where it listens, and who may ask."""

import ipaddress
import logging
import os
import stat
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import model_validator
from typer import Argument, Option

from edgepeft.common.errors import UsageError
from edgepeft.device.machine import thread_count
from edgepeft.options.base import NoCache, Options, Threads

log = logging.getLogger("edgepeft.serve")

_PublicKey = Annotated[Path | None, Option(metavar="PUBLIC_KEY", help="Serve only what the owner of this key signed.")]
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


class Settings(Options):
    """One service, as ``edgepeft serve`` is asked for it."""

    bundle: Annotated[Path, Argument(help="The bundle's folder.")]
    host: Annotated[str, Option(help="Where to listen. Other machines need --token-file.")] = "127.0.0.1"
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one.")] = 8080
    token_file: Annotated[Path | None, Option(help="A file with the token that every request must carry.")] = None
    insecure: Annotated[bool, Option("--insecure", help="Answer other machines without a token.")] = False
    allow_tuning: Annotated[bool, Option("--allow-tuning", help="Let clients tune tasks: the bundle changes.")] = False
    require_signature: _PublicKey = None
    max_wait_ms: Annotated[float, Option(min=0, max=1000, help="A row waits for others to run with.")] = 5
    max_batch: Annotated[int, Option(min=1, max=1024, help="Rows that run together.")] = 32
    max_rows: Annotated[int, Option(min=1, help="Rows of one request.")] = 64
    queue: Annotated[int, Option(min=1, help="Rows that wait; more are refused with 429.")] = 256
    deadline: Annotated[float, Option(min=0.001, max=3600, help="Seconds a request may take.")] = 30
    max_body_kib: Annotated[int, Option(min=1, help="Size of a request's body.")] = 1024
    max_text: Annotated[int, Option(min=1, help="Characters of one text.")] = 20_000
    threads: Threads = None
    workers: Annotated[int, Option(min=1, help="Batches that run at once, each on its share of the threads.")] = 1
    no_cache: NoCache = False
    no_watch: Annotated[bool, Option("--no-watch", help="Read the bundle again on SIGHUP, not on changes.")] = False

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        token, threads = self.token, thread_count(self.threads)
        if self.max_rows > self.queue:
            raise UsageError(
                f"a request may hold {self.max_rows} rows, the queue {self.queue}: give the queue at least as many."
            )
        if not self.loopback and token is None and not self.insecure:
            raise UsageError(
                f"--host {self.host} is reached from other machines: give --token-file FILE, whose token every request "
                "must carry, or --insecure to answer anybody."
            )
        if self.workers > threads:
            raise UsageError(
                f"--workers {self.workers} need a thread each; there are {threads} here, by the processors, the limits "
                "in force and --threads. Give fewer."
            )
        if self.allow_tuning and self.require_signature is not None:
            raise UsageError(
                "--allow-tuning would put tasks into the bundle that nobody signed, and --require-signature would "
                "refuse them. Give one of the two."
            )
        return self

    @cached_property
    def limits(self) -> ServiceLimits:
        """The bounds; those that no option sets are as they are."""
        return ServiceLimits(
            body_bytes=self.max_body_kib << 10,
            text_characters=self.max_text,
            rows=self.max_rows,
            queued_rows=self.queue,
            batch_rows=self.max_batch,
            wait_s=self.max_wait_ms / 1000,
            deadline_s=self.deadline,
        )

    @cached_property
    def token(self) -> str | None:
        """What the token's file holds; spaces and newlines around it do not count."""
        if (path := self.token_file) is None:
            return None
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
                f"{path} holds no token: one word of {_MIN_TOKEN} to {_MAX_TOKEN} printable ASCII characters is "
                f"needed. Make one with: openssl rand -hex 32 > {path}"
            )
        return token

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
