"""`python -m tercio` is the `tercio` command."""

from tercio.cli.main import main

if __name__ == "__main__":
    main()
