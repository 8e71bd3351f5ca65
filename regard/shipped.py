"""Models that ship with the package: run folders in `regard/pretrained/`, each under the name of its folder.

Wherever a run is only read, the name of a shipped model stands for its folder, unless a folder of that name exists.  Nothing is
ever written there: the package may be shared, or belong to another user.
"""

from pathlib import Path

__all__ = ["PRETRAINED", "find_run", "require_writable", "shipped_models", "short_name"]

PRETRAINED = Path(__file__).parent / "pretrained"


def shipped_models() -> dict[str, Path]:
    """The folders of the models that ship with this installation, by name; none in a source tree without them."""
    if not PRETRAINED.is_dir():
        return {}
    return {path.name: path for path in sorted(PRETRAINED.iterdir()) if path.is_dir() and path.name[0] not in "._"}


def find_run(name: str | Path) -> Path:
    """The folder that a run is read from: the folder of that path, else the shipped model of that name."""
    path = Path(name)
    return path if path.is_dir() else shipped_models().get(str(name), path)


def short_name(folder: Path) -> Path:
    """The path of a run folder as users write it: of a shipped model its name."""
    return Path(folder.name) if folder.parent == PRETRAINED and not Path(folder.name).is_dir() else folder


def require_writable(folder: Path) -> None:
    """Refuse to write into the folder of a shipped model."""
    if folder.resolve().is_relative_to(PRETRAINED.resolve()):
        raise ValueError(f"{folder} is in the folder of the models that ship with regard, which is only read; train in another "
                         f"folder with --out, fine-tune a shipped model with init=NAME")  # fmt: skip
