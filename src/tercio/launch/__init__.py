"""Pure launch recipes: a placement becomes the command, environment and files of each task."""
