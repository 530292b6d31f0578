"""Publish a bundle as static files that boards pull and verify (The Update Framework); or keep that repository."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from edgepeft.common.errors import UsageError, requiring
from edgepeft.common.progress import say

PANEL = "Fleet"


def command(
    folders: Annotated[list[Path], Argument(metavar="[BUNDLE] REPOSITORY", help="A bundle, and where to publish it.")],
    keys: Annotated[Path, Option(help="The folder of the private keys, outside of the repository; made if new.")],
    channel: Annotated[str, Option(help="Which boards it is for.")] = "stable",
    task: Annotated[list[str] | None, Option(help="A task to publish; may repeat. Default: all.")] = None,
    withdraw: Annotated[list[str] | None, Option(metavar="TASK", help="Take a task out of the channel.")] = None,
    refresh: Annotated[bool, Option("--refresh", help="Sign the timestamp anew, before it expires.")] = False,
    rotate: Annotated[list[str] | None, Option(metavar="ROLE", help="Replace a role's keys by new ones.")] = None,
    to_hub: Annotated[str | None, Option(metavar="OWNER/NAME", help="Upload it to the Hugging Face Hub too.")] = None,
    license_id: Annotated[str | None, Option("--license", help="Of the model card on the Hub.")] = None,
    days: Annotated[list[str] | None, Option(metavar="ROLE=DAYS", help="Until signatures expire: timestamp=7.")] = None,
    threshold: Annotated[
        list[str] | None, Option(metavar="ROLE=KEYS", help="Keys that sign a role, in a new repository.")
    ] = None,
) -> None:
    with requiring("fleet", "publishing"):
        from edgepeft.fleet import publish as fleet
    if len(folders) > 2:
        raise UsageError(f"BUNDLE and REPOSITORY are two folders; found {len(folders)}.")
    *bundle, repository = folders
    lasting, keys_of, at = _numbers("--days", days), _numbers("--threshold", threshold), str(repository)
    if not (bundle or withdraw or refresh or rotate):
        raise UsageError(f"give a bundle to publish in {at}, or --refresh, --withdraw TASK or --rotate ROLE.")
    if not bundle and (task or threshold):
        raise UsageError("--task and --threshold are of a bundle that is published; give BUNDLE REPOSITORY.")
    for role in rotate or ():
        fleet.rotate(repository, keys, role, days=lasting)
        say(f"the keys of {role} were replaced; the old ones lie in {keys}/retired")
    if bundle:
        how: dict[str, Any] = {"channel": channel, "tasks": task, "days": lasting, "thresholds": keys_of}
        done = fleet.publish(bundle[0], repository, keys, **how)
        if done.keys_made:
            say(
                f"new keys lie in {keys}: keep root.pem where no network reaches it. Boards trust "
                f"{repository}/metadata/1.root.json; give it to them by another way than the repository."
            )
        _say(done.channel, "published", done.new)
    if withdraw:
        _say(channel, "withdrawn", fleet.withdraw(repository, keys, withdraw, channel=channel, days=lasting).gone)
    if refresh:
        say(f"signed anew: {', '.join(fleet.refresh(repository, keys, days=lasting))}")
    if to_hub is not None:
        at = fleet.upload(repository, to_hub, fleet.published_in(repository, keys, channel), license_id)
        say(f"on the Hub: {at}")


def _say(channel: str, what: str, places: Iterable[str]) -> None:
    say(f"{what} in {channel}: {', '.join(places) or 'nothing new'}")


def _numbers(option: str, given: list[str] | None) -> dict[str, int]:
    """``ROLE=NUMBER`` as a dictionary."""
    from edgepeft.fleet.repository import ROLES

    found = {}
    for each in given or ():
        role, _, number = each.partition("=")
        if role not in ROLES or not number.isdigit() or not 0 < int(number) < 10_000:
            raise UsageError(f"{option} is ROLE=NUMBER, the role one of {', '.join(ROLES)}; found {each!r}.")
        found[role] = int(number)
    return found
