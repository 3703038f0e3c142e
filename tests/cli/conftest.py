"""Commands as a person runs them."""

import sys
from typing import NamedTuple

import pytest

from quernel.cli import main


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(monkeypatch, capsys):
    """A command as `main` runs it, in this process."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["quernel", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Ran(ended.value.code or 0, said.out, said.err)

    return command
