"""Pure readers and writers of what people keep in files: jobs, policies, clusters."""
