"""The body of a batch script as the command of every task.

Slurm runs a batch script on the first node and `srun` starts the tasks of all nodes. Here every
task of the gang runs the script, and `srun` in it starts the tasks of its own node: with the
same ranks, in the same places. `scontrol show hostnames` works as scripts use it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tercio.formats.foreign.fields import VARIABLE

SHELLS: Final = ("bash", "sh", "dash", "ksh", "zsh")

_SRUN: Final = r"""# srun starts the tasks of this node; the other nodes run this script too.
srun() {
  local n="" nodes="" k="" at="" i=0 rank status=0 pids=() all="${TERCIO_TASKS:-1}"
  while [ $# -gt 0 ]; do
    case "$1" in
      --) shift; break ;;
      --ntasks=*|--ntasks-per-node=*|--nodes=*|--nodelist=*)
        case "$1" in
          --ntasks=*) n="${1#*=}" ;; --ntasks-per-node=*) k="${1#*=}" ;;
          --nodes=*) nodes="${1#*=}" ;; *) at="${1#*=}" ;;
        esac ;;
      -n|--ntasks) n="$2"; shift ;;
      -N|--nodes) nodes="$2"; shift ;;
      -w|--nodelist) at="$2"; shift ;;
      --ntasks-per-node) k="$2"; shift ;;
      -n[0-9]*) n="${1#-n}" ;;
      -N[0-9]*) nodes="${1#-N}" ;;
      -w?*) at="${1#-w}" ;;
      -[cpAJtoeiDGmqCxdLZEK]|--cpus-per-task|--partition|--account|--job-name|--time|--output|\
      --error|--input|--chdir|--gpus|--gpus-per-task|--gpus-per-node|--gres|--mem|--mem-per-cpu|\
      --mem-per-gpu|--mpi|--cpu-bind|--mem-bind|--gpu-bind|--distribution|--export|--jobid|\
      --container-image|--container-mounts|--container-workdir|--container-name|--container-env|\
      --kill-on-bad-exit|--qos|--constraint|--exclude|--network|--hint|--propagate|--wait) shift ;;
      -*) ;;
      *) break ;;
    esac
    shift
  done
  case ",$at," in ,,|*,"$TERCIO_NODE",*) ;; *) return 0 ;; esac
  if [ -n "$at" ] && [ "${SRUN_LOCALID:-0}" != 0 ]; then return 0; fi
  if [ -n "$nodes" ] && [ -z "$at" ] && [ "${TERCIO_TASK:-0}" -ge "${nodes%%-*}" ]; then
    return 0
  fi
  if [ -n "$n" ] && [ -z "$k" ]; then
    if [ -n "$at" ]; then all=1; elif [ -n "$nodes" ]; then all="${nodes%%-*}"; fi
    k=$(( (n + all - 1) / all ))
  elif [ -n "$n" ] && [ -n "$at" ]; then
    k="$n"
  fi
  k="${k:-@TASKS@}"
  while [ "$i" -lt "$k" ]; do
    rank=$(( ${TERCIO_TASK:-0} * k + i ))
    if [ -n "$n" ] && [ -z "$at" ] && [ "$rank" -ge "$n" ]; then break; fi
    (
      export SLURM_PROCID="$rank" SLURM_LOCALID=$(( ${SLURM_LOCALID:-0} * k + i ))
      export SLURM_STEP_ID=0 SLURM_NTASKS="${n:-$(( ${TERCIO_TASKS:-1} * k ))}"
      export SLURM_NPROCS="$SLURM_NTASKS"
      exec "$@"
    ) &
    pids+=($!)
    i=$(( i + 1 ))
  done
  for i in "${pids[@]}"; do wait "$i" || status=$?; done
  return "$status"
}
export -f srun
"""
_SCONTROL: Final = r"""scontrol() {
  if [ "$1 ${2%s}" = "show hostname" ]; then
    local names="${3:-$SLURM_JOB_NODELIST}"
    printf '%s\n' ${names//,/ }
  else
    echo "scontrol: only 'show hostnames' works inside this job" >&2
    return 1
  fi
}
export -f scontrol
"""
_NODES: Final = r"""# Every task is a node to the script, also where two of them share one.
export SRUN_LOCALID="${SLURM_LOCALID:-0}" SLURM_LOCALID=0 SLURM_NODEID="${TERCIO_TASK:-0}"
export SLURM_NNODES="${TERCIO_TASKS:-1}" SLURM_JOB_NUM_NODES="${TERCIO_TASKS:-1}"
"""
_END: Final = "TERCIO_SCRIPT_END"


def srun_function(tasks_per_node: int = 1) -> str:
    """Return the function of bash that stands for srun inside a job."""
    return _SRUN.replace("@TASKS@", f"${{SLURM_NTASKS_PER_NODE:-{tasks_per_node}}}")


def wrap_script(
    text: str,
    *,
    arguments: tuple[str, ...] = (),
    tasks_per_node: int = 1,
    are_nodes: bool = False,
) -> str:
    """Return the command of a task: what the script needs, then the script without directives.

    `are_nodes` says that the script counts nodes, and that each of its tasks stands for one.
    """
    first, _, rest = text.partition("\n")
    shebang = first[2:].strip().split() if first.startswith("#!") else []
    body = rest if shebang else text
    plain = "\n".join(_without_directives(body.splitlines())).strip("\n")
    head = []
    if re.search(r"\bsrun\b", plain):
        head.append(srun_function(tasks_per_node))
    if re.search(r"\bscontrol\b", plain):
        head.append(_SCONTROL)
    if are_nodes:
        head.append(_NODES)
    head.append('export SLURM_SUBMIT_DIR="${SLURM_SUBMIT_DIR:-$PWD}"\n')
    flags = [word for word in shebang[1:] if word.startswith("-")]
    name = (
        shebang[-1 if shebang[0].endswith("env") else 0].rpartition("/")[2] if shebang else "bash"
    )
    if shebang and shebang[0].endswith("/env"):
        name = next((w for w in shebang[1:] if not w.startswith("-") and "=" not in w), "bash")
        flags = []
    if name in SHELLS[:1] or name == "sh":
        settings = "".join(sorted({c for flag in flags for c in flag[1:] if c in "eux"}))
        if settings:
            head.append(f"set -{settings}\n")
        if arguments:
            head.append(f"set -- {shlex.join(arguments)}\n")
        return "".join(head) + plain + "\n"
    command = shlex.join([*(shebang or ["bash"])])
    words = f" {shlex.join(arguments)}" if arguments else ""
    return (
        "".join(head)
        + f"cat > \"$TERCIO_TASK_DIR/script\" <<'{_END}'\n{plain}\n{_END}\n"
        + f'exec {command} "$TERCIO_TASK_DIR/script"{words}\n'
    )


def _without_directives(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines without the directives that count; later ones may stand in a file it writes."""
    has_begun = False
    for line in lines:
        has_begun = has_begun or (bool(line.strip()) and not line.lstrip().startswith("#"))
        if has_begun or not re.match(r"#SBATCH(\s|$)", line):
            yield line


def named_in(body: str, option: str) -> list[str]:
    """Return the values that a script's `srun` lines give an option, each once.

    Variables are filled in where the script sets them once, to a plain text.

    >>> named_in('srun --container-image="python:3.11" x', "container-image")
    ['python:3.11']
    """
    lines = [line for line in body.splitlines() if not line.lstrip().startswith("#")]
    known = _assigned(lines)
    found = re.findall(rf"--{option}[= ]+[\"']?([^\s\"']+)", "\n".join(lines))
    return list(dict.fromkeys(_filled(text, known) for text in found))


def _assigned(lines: Sequence[str]) -> dict[str, str]:
    """Variables with one value that needs no shell to be known."""
    known: dict[str, str] = {}
    again: list[str] = []
    for line in lines:
        found = re.match(
            rf"\s*(?:export\s+|readonly\s+)?({VARIABLE})=([^\s;]*|\"[^\"]*\")\s*(;|#|$)", line
        )
        if found is None:
            continue
        name, value = found[1], found[2].strip("\"'")
        if name in known or "$(" in value or "`" in value:
            again.append(name)
        known[name] = value
    return {name: value for name, value in known.items() if name not in again}


def _filled(text: str, known: Mapping[str, str]) -> str:
    for _ in range(8):
        text = re.sub(
            rf"\$(?:\{{({VARIABLE})\}}|({VARIABLE}))",
            lambda m: known.get(m[1] or m[2], m[0]),
            text,
        )
    return text
