from __future__ import annotations

from pathlib import Path

import pytest

from tercio.config import Config, default_state_dir, load, search_paths, settings
from tercio.errors import UserError


def written(tmp_path: Path, text: str, name: str = "config.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    path = written(tmp_path, "[server]\nport = 1\nhost = '127.0.0.2'\nbody_bytes_max = 4096\n")
    config, origins = load(
        {"server.port": 3, "server.host": None},
        {"TERCIO_SERVER__PORT": "2", "TERCIO_SERVER__HOST": "127.0.0.3"},
        [path],
    )
    assert (config.server.port, config.server.host) == (3, "127.0.0.3")
    assert config.server.body_bytes_max == 4096
    assert origins["server.port"] == "flag"
    assert origins["server.host"] == "environment TERCIO_SERVER__HOST"
    assert origins["server.body_bytes_max"] == f"file {path}"
    assert origins["server.tls_cert"] == "default"


def test_later_file_wins_and_an_absent_one_is_passed_over(tmp_path: Path) -> None:
    first = written(tmp_path, "[server]\nport = 1\n", "a.toml")
    second = written(tmp_path, "[server]\nport = 2\n", "b.toml")
    config, _ = load({}, {}, [first, tmp_path / "absent.toml", second])
    assert config.server.port == 2


def test_every_setting_has_an_origin_and_a_value() -> None:
    config, origins = load({}, {"HOME": "/h"}, [])
    assert list(dict(settings(config))) == list(origins)
    assert set(origins.values()) == {"default"}
    assert config.state_dir == default_state_dir({"HOME": "/h"})


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("[server]\nprot = 1\n", "server.prot", "did you mean 'server.port'"),
        ("[serve]\nport = 1\n", "serve.port", "did you mean 'server.port'"),
        ("[local]\nhost = 'x'\n", "local.host", "did you mean 'server.host'?"),
        ("zzz = 1\n", "zzz", "see `tercio config show` for every key"),
        ("server = 1\n", "server", None),
    ],
)
def test_unknown_key_is_refused_with_the_nearest(
    tmp_path: Path, text: str, field: str, hint: str | None
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load({}, {}, [path])
    assert caught.value.field == field
    assert str(path) in caught.value.message
    assert caught.value.hint
    if hint:
        assert hint in caught.value.hint


def test_unknown_environment_key_is_refused_and_other_names_are_left_alone() -> None:
    load({}, {"TERCIO_URL": "http://x", "TERCIO_TOKEN": "t", "TERCIO_JOB": "j"}, [])
    with pytest.raises(UserError, match=r"TERCIO_SERVER__PRT: unknown setting 'server\.prt'"):
        load({}, {"TERCIO_SERVER__PRT": "1"}, [])


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("server.port", "many", "server.port: 'many' is not right"),
        ("server.port", 70_000, "port must be 0 to 65535"),
        ("server.tls_cert", "a.pem", "tls_cert and tls_key are given together"),
        ("scheduler.busy_ratio", 0.0, "busy_ratio must be 0.01 to 1"),
        ("store.job_days", -1.0, "job_days must not be negative"),
        ("runtime.turn_max", 0, "turn_max must be at least 1"),
        ("local.cpu_devices", -2, "cpu_devices must be 0 to 4096"),
        ("log.level", "loud", "level must be debug, info, warning or error"),
    ],
)
def test_wrong_value_names_the_key_and_where_it_came_from(
    key: str, value: object, part: str
) -> None:
    with pytest.raises(UserError) as caught:
        load({key: value}, {}, [])
    assert part in caught.value.message
    assert "flag" in caught.value.message
    assert caught.value.field


def test_environment_text_becomes_the_type_of_the_setting() -> None:
    environ = {
        "TERCIO_LOCAL__ENABLED": "false",
        "TERCIO_LOCAL__CPU_DEVICES": "3",
        "TERCIO_STORE__JOB_DAYS": "0.5",
        "TERCIO_STATE_DIR": "/s",
    }
    config, _ = load({}, environ, [])
    assert (config.local.enabled, config.local.cpu_devices) == (False, 3)
    assert (config.store.job_days, config.state_dir) == (0.5, "/s")
    config, _ = load({}, {"TERCIO_LOCAL__CPU_DEVICES": ""}, [])
    assert config.local.cpu_devices is None


def test_broken_and_missing_files_say_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not valid TOML"):
        load({}, {}, [written(tmp_path, "[server\n")])
    missing = str(tmp_path / "nowhere.toml")
    with pytest.raises(UserError, match="TERCIO_CONFIG names"):
        load({}, {"TERCIO_CONFIG": missing})


def test_named_file_is_the_only_one_searched(tmp_path: Path) -> None:
    assert search_paths({"TERCIO_CONFIG": "/x.toml"}) == (Path("/x.toml"),)


def test_defaults_are_sound() -> None:
    assert Config().server.host == "127.0.0.1"
