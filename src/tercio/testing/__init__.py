"""Building blocks for tests, benches and demos of Tercio itself."""
