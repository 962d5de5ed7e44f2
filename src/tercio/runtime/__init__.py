"""The live shell around the pure core: one writer task, the journal, engines, time."""
