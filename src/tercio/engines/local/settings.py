"""Settings of the local engine."""

from __future__ import annotations

import msgspec

PASSED_ENV = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "ROCM_PATH")
STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class LocalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tasks run on this machine.

    Attributes:
        tasks_dir: absolute; holds a directory per task. Its parents must let other users
            through (mode o+x) when tasks run as other users.
        run_as: system user for jobs whose user is none here, when the server is root.
        log_cap_bytes: most bytes of log kept per task.
        workdir_bytes_max: most bytes that a snapshot may unpack to.
        path: PATH of the tasks; None for the server's own when the task has the server's user,
            else `STANDARD_PATH`.
        pass_env: variables of the server that tasks see, where they are set.
        containers: the container program, `auto` for the first that answers, `off` for none.
        refresh_s: how often the machine's facts are read again.
        launch_timeout_s: how long a supervisor may take to answer.
        answer_timeout_s: how long a running supervisor may take to answer an order.
        overdue_s: how long after the grace a supervisor that is still there is killed.
    """

    tasks_dir: str
    run_as: str | None = None
    log_cap_bytes: int = 64 * 1024**2
    workdir_bytes_max: int = 16 * 1024**3
    path: str | None = None
    pass_env: tuple[str, ...] = PASSED_ENV
    containers: str = "auto"
    refresh_s: float = 60.0
    launch_timeout_s: float = 60.0
    answer_timeout_s: float = 5.0
    overdue_s: float = 45.0
