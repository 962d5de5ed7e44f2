"""What must survive the server: the journal, secrets, and uploaded working directories."""
