"""Energy of jobs: counters to joules, joules to kilowatt-hours, money and carbon."""
