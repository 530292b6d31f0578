"""Serve a bundle over HTTP, with a page at / and documentation at /docs, until SIGTERM or Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from edgepeft.cli._options import BundleFolder
from edgepeft.common.errors import requiring
from edgepeft.common.progress import no_longer, say
from edgepeft.options.base import NoCache, Threads

PANEL = "Deploy"

TokenFile = Annotated[Path | None, Option(help="A file with the token that every request must carry.")]
PublicKey = Annotated[Path | None, Option(metavar="PUBLIC_KEY", help="Serve only what the owner of this key signed.")]


def command(
    *,
    bundle: BundleFolder,
    host: Annotated[str, Option(help="Where to listen. Other machines need --token-file.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    token_file: TokenFile = None,
    insecure: Annotated[bool, Option("--insecure", help="Answer other machines without a token.")] = False,
    allow_tuning: Annotated[bool, Option("--allow-tuning", help="Let clients tune tasks: the bundle changes.")] = False,
    require_signature: PublicKey = None,
    max_wait_ms: Annotated[float, Option(min=0, max=1000, help="A row waits for others to run with.")] = 5,
    max_batch: Annotated[int, Option(min=1, max=1024, help="Rows that run together.")] = 32,
    max_rows: Annotated[int, Option(min=1, help="Rows of one request.")] = 64,
    queue: Annotated[int, Option(min=1, help="Rows that wait; more are refused with 429.")] = 256,
    deadline: Annotated[float, Option(min=0.001, max=3600, help="Seconds a request may take.")] = 30,
    max_body_kib: Annotated[int, Option(min=1, help="Size of a request's body.")] = 1024,
    max_text: Annotated[int, Option(min=1, help="Characters of one text.")] = 20_000,
    threads: Threads = None,
    workers: Annotated[int, Option(min=1, help="Batches that run at once, each on its share of the threads.")] = 1,
    no_cache: NoCache = False,
    no_watch: Annotated[bool, Option("--no-watch", help="Read the bundle again on SIGHUP, not on changes.")] = False,
) -> None:
    with requiring("serve", "serving"):
        from edgepeft.serve.server import line, log_to_stderr, run_server
        from edgepeft.serve.settings import ServiceLimits, Settings, read_token
    limits = ServiceLimits(
        body_bytes=max_body_kib << 10,
        text_characters=max_text,
        rows=max_rows,
        queued_rows=queue,
        batch_rows=max_batch,
        wait_s=max_wait_ms / 1000,
        deadline_s=deadline,
    )
    settings = Settings(
        bundle=bundle,
        host=host,
        port=port,
        token=None if token_file is None else read_token(token_file),
        insecure=insecure,
        allow_tuning=allow_tuning,
        public_key=require_signature,
        threads=threads,
        workers=workers,
        cache=not no_cache,
        watch=not no_watch,
        limits=limits,
    )
    log_to_stderr()
    shown = line(str(bundle))
    say(f"opening the tasks of {shown}")

    def started(address: str) -> None:
        no_longer()  # from here on it waits
        say(f"serving {shown} on {address}")

    run_server(settings, started)
