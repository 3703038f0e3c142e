"""`python -m quernel`."""

from quernel.cli import main

main()
