"""`python -m evkf` is `evkf`."""

from evkf.cli import main

main()
