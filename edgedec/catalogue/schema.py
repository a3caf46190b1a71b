"""The catalogue as data: one TOML card per model, in ``models/`` of a checkout and ``edgedec/_models`` of a wheel."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from edgedec.errors import EdgedecError, UnknownNameError

DEFAULT = "smollm2-135m"
"""The model that is used when none is named."""

Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(gt=0)]


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GGUF file, known to the byte. ``name`` has no folder; ``size`` is in bytes."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[^/\\]+\.gguf$")]
    quantisation: Text
    size: Count
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class HubSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file lies in the root of a repository on the Hugging Face hub, at a commit that cannot change."""

    repo: Annotated[str, msgspec.Meta(pattern=r"^[^/]+/[^/]+$")]
    revision: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}$")]


class WheelSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file is also ``member`` of a wheel of ``size`` bytes on the Python package index."""

    package: Text
    version: Text
    size: Count
    member: Text


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the catalogue knows about a model before its file is here."""

    name: Text
    title: Text
    family: Text
    architecture: Text
    license: Text
    n_params: Count
    n_ctx_train: Count
    file: ModelFile
    hub: HubSource
    wheel: WheelSource | None = None


@cache
def cards() -> tuple[Card, ...]:
    """All cards, by name."""
    installed = Path(__file__).parents[1] / "_models"
    return read_cards(installed if installed.is_dir() else Path(__file__).parents[2] / "models")


def card(name: str) -> Card:
    """The card called ``name``. Raises `UnknownNameError`."""
    for known in cards():
        if known.name == name:
            return known
    raise UnknownNameError("model", name, [known.name for known in cards()])


def read_cards(folder: Path) -> tuple[Card, ...]:
    """The cards in ``folder``, by name. Raises `EdgedecError` naming the file and the field that is wrong."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        try:
            found.append(msgspec.convert(tomllib.loads(path.read_text("utf-8")), Card))
        except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise EdgedecError(f"The model card {path} is not valid: {error}.") from error
        if found[-1].name != path.stem:
            raise EdgedecError(f"The model card {path} describes {found[-1].name!r}.", "Name the file after the model.")
    if not found:
        raise EdgedecError(f"There are no model cards in {folder}.", "Install edgedec again.")
    return tuple(found)
