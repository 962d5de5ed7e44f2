"""Runs tasks as processes of this machine, each under a supervisor that outlives the server.

The supervisor starts in a few milliseconds because this package, `records`, `processes`,
`tasklog` and `supervisor` import almost nothing; keep it so. `engine` is the server's side.
"""
