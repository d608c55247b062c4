"""`python -m protolith` is the command line."""

from protolith.cli.main import main

main()
