"""Checks of output paths: no command may overwrite its own input, not even with --force."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from quernel._files import check_writable
from quernel.estimators.warm_start import read_checkpoint
from quernel.tables.multi_file import find_files, is_data_file


def check_outputs(outputs: Mapping[str, Path | None], data: Path, model: Path | None = None) -> None:
    """Raise, before any work, if an output is an input, would become one, or is named twice.

    `outputs` maps options to paths; `data` and `model` are the inputs.
    """
    named = {option: path for option, path in outputs.items() if path is not None}
    read = {_identity(path): path for path in find_files(data) if path.exists()}
    for option, path in named.items():
        if not path.exists():
            _refuse_among_data(option, path, data)
            continue
        if _identity(path) in read:
            of = "" if read[_identity(path)] == data else f", one of {data}"
            raise ValueError(
                f"{option} {path} is the input data{of}: it would be lost. Choose another name for the output."
            )
        if model is not None and model.exists() and _identity(path) == _identity(model):
            raise ValueError(
                f"{option} {path} is the input model: it would be lost. Choose another name for the output."
            )
    for (one, path), (other, again) in combinations(named.items(), 2):
        if path.resolve() == again.resolve():
            raise ValueError(f"{one} and {other} name the same file, {again}. Give each a name of its own.")


def check_checkpoint(path: Path | None) -> None:
    """Raise, before any work, if the path cannot be written or is a file other than a checkpoint."""
    if path is None:
        return
    check_writable(path, overwrite=True)
    if path.exists():
        try:
            read_checkpoint(path)
        except ValueError as error:
            raise ValueError(
                f"--checkpoint {path} is a file, but not a checkpoint of a fit. Choose another name."
            ) from error


def _refuse_among_data(option: str, path: Path, data: Path) -> None:
    """Raise if the output would be read as data by the next command on the same folder or pattern."""
    if data.is_file() or not is_data_file(path):
        return
    place, among = path.resolve(), data.resolve()
    if among in place.parents if data.is_dir() else place.match(str(among)):
        raise ValueError(
            f"{option} {path} would be one of the files of {data}, and read as data by the next command. Write it to "
            "another folder."
        )


def _identity(path: Path) -> tuple[int, int]:
    """Identify a file by device and inode, the same for all paths and links to it."""
    found = path.stat()
    return found.st_dev, found.st_ino
