"""One module per verb; each has a `command`. `cli.main` holds the table of them."""
