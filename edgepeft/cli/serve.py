"""Serve a bundle over HTTP, with a page at / and documentation at /docs, until SIGTERM or Ctrl-C."""

from edgepeft.cli._options import command_of
from edgepeft.common.errors import requiring
from edgepeft.common.progress import no_longer, say
from edgepeft.serve.settings import Settings

PANEL = "Deploy"


@command_of(Settings, "serve")
def command(settings: Settings) -> None:
    with requiring("serve", "serving"):
        from edgepeft.serve.server import line, log_to_stderr, run_server
    log_to_stderr()
    shown = line(str(settings.bundle))
    say(f"opening the tasks of {shown}")

    def started(address: str) -> None:
        no_longer()  # from here on it waits
        say(f"serving {shown} on {address}")

    run_server(settings, started)
