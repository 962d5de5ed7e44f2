"""Job files that several tests read, and what they do with them."""

from tercio.errors import UserError


def refusal(read, *given, **options):
    """Return the error that refuses the input, or None when it is accepted."""
    try:
        read(*given, **options)
    except UserError as error:
        return error
    return None


def plain(node):
    """Return a node as plain values, the way other YAML readers give them."""
    match node.value:
        case dict():
            return {key: plain(inner) for key, inner in node.value.items()}
        case list():
            return [plain(inner) for inner in node.value]
        case value:
            return value


CONTRACT = """\
name: llama-sft
queue: research/nlp
user: null
priority: 0
preemptible: true
groups:
  - name: trainer
    tasks: 4
    per_task:
      devices: "H100:8 | A100-80GB:8"
      cpus: 32
      memory: 256GiB
      shm: 64GiB
    topology: {same: rack, prefer: island, slice: {tasks: 2, same: island}, leader: null}
    subgroups: []
    exclusive: false
topology: {same: block, spread: null}
nodes: {match: "pool == 'a' && !('old' in labels)", exclude: [n7]}
time: {limit: 8h, expected: 6h, deadline: null, earliest: null}
run: |
  python train.py
setup: |
  pip install -r requirements.txt
framework: torchrun
env: {WANDB_MODE: offline}
secrets: [HF_TOKEN]
workdir: .
outputs: null
image: null
checkpoint: {path: /ckpt/x, signal: SIGUSR1, grace: 120s, every: auto}
retry: {on: [node_failed, preempted], max: 5, backoff: 30s}
repair: gang
depends_on: [{job: job-7f3k2, when: ok}]
array: "0-99%8"
reservation: null
sites: [local, hpc]
speed: {H100: 1.0, A100: 0.4}
notify: [{on: [failed, finished], url: "https://example.org/hook"}]
labels: {project: x}
"""

EVERYTHING = """\
name: all-of-it
queue: a/b
priority: -3
preemptible: false
groups:
  - name: lead
    tasks: 1
    per_task: {devices: "H100/1g.10gb:1", cpus: 0.5, memory: 1GiB, shm: 1MiB}
  - name: work
    tasks: 2..8
    per_task: {devices: "H100:1..4 | 80GB..:2"}
    topology: {same: rack, prefer: node, spread: node, slice: {tasks: 2, same: node}, leader: lead}
    exclusive: true
  - name: nest
    subgroups:
      - {name: left, tasks: 2, per_task: {devices: "H100:0.5"}}
      - {name: right, tasks: 2, per_task: {devices: "H100@20GiB"}}
    min_subgroups: 1
topology: {same: block}
nodes: {match: "devices >= 4", exclude: [n1, n2]}
time:
  {limit: 8h, expected: 6h, deadline: "2027-01-01T00:00:00Z", earliest: 1796112000, flexible: 12h}
run: ./go
setup: ./prepare
framework: mpi
env: {A: 1, B: "x", C: 010, D: true}
secrets: [TOKEN]
workdir: /srv/code
outputs: out
image: example/img:1
checkpoint: {path: /c, signal: USR2, grace: 1m, every: 10m}
retry: {on: [failed, time_limit, launch_failed], max: 0, backoff: 0}
repair: task
depends_on: [job-00001, {job: job-00002.7, when: any}]
array: "1,3,10-20:5%2"
reservation: res-00001
sites: [hpc]
speed: {H100: 1, A100: {tasks: [1, 2, 4], units_per_s: [1, 1.9, 3.5]}}
notify: [{on: [started], url: "http://127.0.0.1:8080/x"}]
labels: {a.b/c: 007}
wait_for_capacity: true
"""
