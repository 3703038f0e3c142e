"""The program `quernel`, also as `python -m quernel`."""

from __future__ import annotations

import sys

# What the command line needs besides the library.
PACKAGES = ("typer", "rich", "duckdb", "pyarrow", "matplotlib")


def main() -> None:
    """Run the command line or, if packages that it needs are not installed, say in one line how to install them."""
    try:
        import duckdb  # noqa: F401

        from quernel.cli import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in PACKAGES:
            raise
        needed = " ".join(PACKAGES)
        sys.exit(f"Error: the command line needs {error.name}, which is not installed. Run: pip install {needed}")
    run()


if __name__ == "__main__":
    main()
