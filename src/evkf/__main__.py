"""`python -m evkf` is `evkf`."""

from evkf.cli.app import main

main()
