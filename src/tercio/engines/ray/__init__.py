"""Runs tasks on a Ray cluster: placement groups hold the devices, a detached actor per node acts.

| process | where | what it does |
|---|---|---|
| server (`engine`) | Tercio | asks, and keeps no Ray in memory |
| bridge (`bridge`) | beside the server, its child | the only Ray driver: groups, survey, calls |
| node agent (`agent`) | an actor on each node | starts, stops and reads tasks of its node |

The bridge dies with the server; agents and tasks go on, and the next server adopts them by name
and namespace. `ray` is imported in the bridge and in the agents alone.
"""
