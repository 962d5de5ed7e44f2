"""Small schedulers of published rules, for comparison. They make plans as ours does."""
