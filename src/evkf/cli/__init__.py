"""The command line. Each module defines one command or a few, or what commands share."""
