"""Job files of other tools: each reader turns one into native jobs and says what was lost."""
