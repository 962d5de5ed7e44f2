"""The Slurm engine: tasks as Slurm jobs, placed by Tercio or left to Slurm."""
