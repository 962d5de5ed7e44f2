"""The command line: lazy commands over `tercio.client`, output and errors."""
