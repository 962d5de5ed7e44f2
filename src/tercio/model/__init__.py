"""Pure nouns: what Tercio talks about. Nothing here reaches a clock, a file or a socket."""
