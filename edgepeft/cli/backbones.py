"""List the backbones, or show what one is read as: sizes, sites, the config's keys, and what is not supported."""

import inspect
from pathlib import Path
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Column
from typer import Argument, Option

from edgepeft.backbones.base import families, family_of
from edgepeft.backbones.config import architecture_names, config_of, read_config
from edgepeft.cli._output import print_json, show_table, table_console
from edgepeft.common.errors import UnknownName

PANEL = "Look"

_SIZES = ("n_layers", "n_heads", "hidden_size", "intermediate_size", "vocab_size", "max_length")


class _Noted(dict[str, Any]):
    """A config that notes which of its keys were asked for, and what they gave."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.asked: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        self.asked[key] = super().__getitem__(key)
        return self.asked[key]

    def get(self, key: str, default: Any = None) -> Any:
        self.asked[key] = super().get(key, default)
        return self.asked[key]


def command(
    name: Annotated[
        str | None,
        Argument(
            help="A model type, an architecture's name, a folder with a config.json or a GGUF file.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    if name is None:
        types = {name: config_of(name)["model_type"] for name in architecture_names()}
        rows: list[dict[str, Any]] = [
            {
                "family": family.name,
                "models": (inspect.getdoc(type(family)) or "").splitlines()[0].rstrip("."),
                "model_types": list(family.model_types),
                "architectures": [name for name, model_type in types.items() if model_type in family.model_types],
                "limits": list(family.limits),
            }
            for family in dict.fromkeys(families().values())
        ]
        if as_json:
            print_json({"schema": "edgepeft.backbones/1", "backbones": rows})
            return
        folded = (Column(name, overflow="fold") for name in ("models", "model_type", "known by name"))
        cells = ((x["family"], x["models"], ", ".join(x["model_types"]), ", ".join(x["architectures"])) for x in rows)
        show_table("family", *folded, rows=(map(escape, row) for row in cells))
        return
    found = _described(*_config(name))
    if as_json:
        print_json({"schema": "edgepeft.backbone/1", **found})
        return
    console = table_console()
    console.print(f"[bold]{escape(found['model_type'])}[/bold]  family {escape(found['family'])}\n")
    for fact in ("n_parameters", *_SIZES):
        console.print(f"{fact:<18}{found[fact]:,}", markup=False)
    for fact in ("sizes_of", "head", "inputs", "sites"):
        shown = found[fact] if isinstance(found[fact], str) else ", ".join(found[fact])
        console.print(f"{fact:<18}{shown}", markup=False, soft_wrap=True)
    for limit in found["limits"]:
        console.print(f"- {limit}", markup=False, soft_wrap=True)
    read = ((escape(key), escape(str(value))) for key, value in found["config"].items())
    show_table("read of the config", Column("there", overflow="fold"), rows=read)


def _config(name: str) -> tuple[dict[str, Any], str]:
    """That of a folder, of an architecture, or of one that stands for a model type; and whose it is."""
    from edgepeft.backbones.gguf_file import folder_of_gguf

    folder = folder_of_gguf(Path(name)) if Path(name).is_file() else Path(name)
    if folder.is_dir():
        return read_config(folder / "config.json"), name
    types, known = families(), {each: config_of(each) for each in architecture_names()}
    if name in types:
        nearest = [name, *types[name].model_types]  # its own first, then what its family is named after
        of = {each: known[each]["model_type"] for each in known if known[each]["model_type"] in nearest}
        chosen = min(of, key=lambda each: (nearest.index(of[each]), not each.startswith(of[each])))
        return {**known[chosen], "model_type": name}, chosen
    if name.rsplit("/", 1)[-1].lower() not in map(str.lower, known):
        raise UnknownName("backbone", name, {*types, *known})
    return config_of(name), name


def _described(config: dict[str, Any], source: str) -> dict[str, Any]:
    noted = _Noted(config)
    family = family_of(noted)
    architecture = family.architecture(noted)
    roles = dict.fromkeys(site.name.rsplit(f"layer.{site.layer}.", 1)[-1] for site in architecture.sites)
    return {
        "model_type": architecture.model_type,
        "family": family.name,
        "sizes_of": source,
        **{size: getattr(architecture, size) for size in (*_SIZES, "n_parameters")},
        "head": architecture.head,
        "inputs": list(architecture.inputs),
        "sites": list(roles),
        "limits": list(family.limits),
        "config": dict(sorted(noted.asked.items())),
    }
