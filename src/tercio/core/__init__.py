"""Pure life cycle: one door, transition tables, ledger, driver. Events in, effects out."""
