"""The node agent: reads a node of any engine and tells the server, or Prometheus, or both."""
