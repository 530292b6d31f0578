"""``python -m bench.published FOLDER``: writes devices.md and devices.png, or checks that the page is up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.published.devices_page import check_devices, write_devices
from edgepeft.cli._main import main
from edgepeft.device.profiles import known_profiles, load_profile

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def devices(
    folder: Annotated[Path, typer.Argument(help="Where devices.md and devices.png lie; the repository's are in docs.")],
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail when devices.md is not what would be written.")
    ] = False,
) -> None:
    """Predict every published latency of the shipped profiles without its own model or family, and show the errors."""
    profiles = [load_profile(name) for name in known_profiles()]
    if check:
        check_devices(profiles, folder)
        return
    typer.echo("\n".join(map(str, write_devices(profiles, folder))))


if __name__ == "__main__":
    main(app)
