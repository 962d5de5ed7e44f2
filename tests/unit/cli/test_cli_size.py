"""`tercio size` from the command line: bodies, exit codes, bad input."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tercio
from tercio.cli.commands.size import command
from tercio.errors import UserError


def run(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


def test_train_prints_ranked_layouts_and_their_versions() -> None:
    answer = run(
        "train", "--model", "llama-3-8b", "--tokens", "100B", "--gpus", "H100", "--counts", "8,64"
    )
    assert answer.exit_code == 0
    assert "64 x H100-SXM5-80GB" in answer.output
    assert "catalogue 2026" in answer.output
    assert "assumed: global batch 4.0 M tokens" in answer.output


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("train", "--model", "llama-3-8b", "--tokens", "1B", "--counts", "8"), "SizingTrain"),
        (("finetune", "--model", "llama-3-8b"), "SizingFinetune"),
        (("serve", "--model", "llama-3-8b", "--rps", "5"), "SizingServe"),
        (("fit", "--model", "llama-3-8b", "--method", "lora"), "SizingFit"),
        (("gpus",), "SizingGpus"),
    ],
)
def test_json_bodies_carry_schema_kind_and_catalogue(words: tuple[str, ...], kind: str) -> None:
    answer = run(*words, "-o", "json")
    assert answer.exit_code == 0
    body = json.loads(answer.output)
    assert (body["schema"], body["kind"]) == ("tercio/v1", kind)
    assert "2026-11-30" in answer.output


def test_fit_exits_8_when_nothing_fits_and_0_when_it_does() -> None:
    assert run("fit", "--model", "llama-3-70b", "--gpus", "L40S").exit_code == 8
    assert run("fit", "--model", "llama-3-8b", "--method", "qlora", "--gpus", "L40S").exit_code == 0


def test_a_configuration_file_is_read(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {"hidden_size": 1024, "num_hidden_layers": 8, "vocab_size": 32000, "hidden_act": "silu"}
        )
    )
    answer = run("fit", "--config", str(config), "--gpus", "L40S")
    assert answer.exit_code == 0
    assert "assumed: 8 heads of 128" in answer.output


@pytest.mark.parametrize(
    ("words", "field", "hint"),
    [
        (("fit", "--model", "lama-3-8b"), "model", "did you mean"),
        (("fit", "--model", "llama-3-8b", "--gpus", "H10O"), "gpu", "did you mean"),
        (("fit",), "model", "--config"),
        (("train", "--model", "llama-3-8b", "--tokens", "none"), "tokens", "1T"),
        (("fit", "--config", "/nonexistent.json"), "config", None),
        (("validate", "--data", "/nonexistent"), "data", "TERCIO_SHARED"),
    ],
)
def test_bad_input_names_the_field(words: tuple[str, ...], field: str, hint: str | None) -> None:
    error = run(*words).exception
    assert isinstance(error, UserError)
    assert error.field == field
    if hint is not None:
        assert hint in (error.hint or "")


def test_validate_reports_absent_tables_and_writes_rows(tmp_path: Path) -> None:
    (tmp_path / "train_torchtitan.csv").write_text(
        "model,gpu,n_gpus,tp,pp,cp,seq_len,local_batch,act_ckpt,torch_compile,precision,async_tp,"
        "pp_schedule,tokens_per_s_per_gpu\n"
        "llama3.1-8b,H100-96GB-HBM2e-500W,8,1,1,1,8192,2,selective,True,bf16,False,,6667\n"
    )
    rows = tmp_path / "rows.jsonl"
    answer = run(
        "validate", "--data", str(tmp_path), "--calibrate", "packaged", "--rows", str(rows), "-o",
        "json",
    )  # fmt: skip
    body = json.loads(answer.output)
    titan = next(m for m in body["metrics"] if m["table"] == "train_torchtitan")
    assert titan["used"] == 1
    assert {a["table"] for a in body["absent"]} >= {"train_llm_foundry", "memory_measured"}
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert written[0]["measured"] == pytest.approx(6667)
    assert written[0]["low"] < written[0]["predicted"] < written[0]["high"]


def test_fit_asks_what_a_job_file_asks(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        'per_task: {devices: "H100:2 | A100-40GB:2"}\n'
        "model: {name: llama-3-8b, method: full, seq: 2048}\nrun: x\n"
    )
    answer = run("fit", str(file), "-o", "json")
    assert answer.exit_code == 0
    rows = json.loads(answer.output)["answers"]
    assert [(row["gpu"], row["gpus"], row["fits"]) for row in rows] == [
        ("H100-SXM5-80GB", 2, True),
        ("A100-SXM4-40GB", 2, False),
    ]
    assert rows[1]["smallest_gpus"] == 4
    file.write_text("per_task: {devices: auto}\nmodel: llama-3-8b\nrun: x\n")
    answer = run("fit", str(file), "--gpus", "L40S,L4")
    assert answer.exit_code == 0
    assert answer.output.count("1 x L4") == 2


def test_fit_needs_a_model_in_the_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("run: x\n")
    error = run("fit", str(file)).exception
    assert isinstance(error, UserError)
    assert "model: {name: llama-3-8b" in (error.hint or "")


def test_serve_reads_its_load_from_a_trace_and_options_win(tmp_path: Path) -> None:
    trace = tmp_path / "requests.jsonl.gz"
    rows = [
        {"timestamp": 200 * n, "input_length": 1024, "output_length": 100, "hash_ids": [0, n + 1]}
        for n in range(600)
    ]
    trace.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    words = ("serve", "--model", "llama-3-8b", "--gpus", "H100", "--trace", str(trace))
    body = json.loads(run(*words, "-o", "json").output)
    assert body["load"]["prefix_hit_ratio"] == pytest.approx(0.5, abs=0.01)
    assert body["answers"][0]["goodput_rps"] >= body["load"]["peak_rps"] == 5.0
    text = run(*words, "--rps", "50", "--prefix-hit", "0").output
    assert "50 requests/s of 1024 in, 100 out" in text
    assert "prefix cache" not in text
    assert "600 requests" in text


def test_train_shows_terms_grid_and_what_is_not_known() -> None:
    words = ("train", "--model", "llama-3-8b", "--tokens", "1B", "--gpus", "H100", "--counts", "8")
    text = run(*words, "--price", "spot", "--grid", "France").output
    assert "$/device-hour spot" in text
    assert "44.18 g/kWh, France 2024" in text
    assert "storage - (two checkpoints), egress - (the weights once)" in text
    blank = run(*words, "--price", "committed").output
    assert "no published price on these terms" in blank
    assert "carbon - (no grid named" in blank


TRAIN = "train", "--model", "llama-3-8b", "--tokens", "1B", "--gpus", "H100", "--counts", "8"
SERVE = "serve", "--model", "llama-3-8b"


@pytest.mark.parametrize(
    ("words", "message", "field"),
    [
        ((*TRAIN, "--tp", "3"), "32 attention heads are not divisible by tp = 3", "tp"),
        ((*TRAIN, "--pp", "64"), "32 layers cannot fill pp = 64 stages", "pp"),
        ((*TRAIN, "--pp", "16"), "no device count of 8 is a multiple of", "counts"),
        ((*TRAIN, "--ep", "8"), "has no experts", "ep"),
        ((*TRAIN, "--moe-imbalance", "0.5"), "moe-imbalance is 0.5", "moe-imbalance"),
        ((*TRAIN, "--grid", "Atlantis"), "unknown grid", "grid"),
        ((*TRAIN, "--batch-tokens", "4096", "--pp", "8"), "no layout is legal", "batch-tokens"),
        (SERVE, "no rate of requests", "rps"),
        ((*SERVE, "--rps", "nan"), "rps is nan", "rps"),
        ((*SERVE, "--rps", "1", "--prefix-hit", "7"), "prefix-hit is 7", "prefix-hit"),
        ((*SERVE, "--rps", "1", "--spec-length", "4"), "needs --spec-accept", "spec-accept"),
        (
            (*SERVE, "--rps", "1", "--spec-length", "-4", "--spec-accept", "0.5"),
            "drafts is -4",
            "drafts",
        ),
        ((*SERVE, "--trace", "/nonexistent"), "cannot read", "trace"),
    ],
)
def test_nonsense_is_refused_by_the_rule_it_breaks(
    words: tuple[str, ...], message: str, field: str
) -> None:
    error = run(*words).exception
    assert isinstance(error, UserError), error
    assert message in error.message
    assert error.field == field


@pytest.mark.parametrize("kind", ["train", "finetune", "serve", "fit"])
@pytest.mark.parametrize("bandwidth", ["0", "-3350", ".nan"])
def test_a_part_without_bandwidth_is_refused_by_every_question(
    tmp_path: Path, kind: str, bandwidth: str
) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(f"gpus:\n  Odd: {{like: H100, mem_bw_gb_s: {bandwidth}}}\n")
    more = {"train": ("--tokens", "1B"), "serve": ("--rps", "1")}.get(kind, ())
    words = (kind, "--model", "llama-3-8b", "--gpus", "Odd", "--site", str(file), *more)
    error = run(*words).exception
    assert isinstance(error, UserError), error
    assert error.field == "gpus.Odd.mem_bw_gb_s"


def huge(tmp_path: Path, **changes: object) -> str:
    """A dense model of ten trillion parameters."""
    config = {
        "hidden_size": 65536, "num_hidden_layers": 192, "num_attention_heads": 512,
        "intermediate_size": 262144, "vocab_size": 256000, "hidden_act": "silu", **changes,
    }  # fmt: skip
    file = tmp_path / "huge.json"
    file.write_text(json.dumps(config))
    return str(file)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--tokens", "1B", "--counts", "1"),
        ("finetune", "--method", "full"),
        ("serve", "--rps", "1"),
    ],
)
def test_ten_trillion_parameters_on_a_t4_fit_nowhere(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    error = run(words[0], "--config", huge(tmp_path), "--gpus", "T4", *words[1:]).exception
    assert isinstance(error, UserError), error
    assert error.code == "never_fits"
    assert error.hint


def test_fit_says_how_far_ten_trillion_parameters_are_from_a_t4(tmp_path: Path) -> None:
    fit = run("fit", "--config", huge(tmp_path), "--gpus", "T4")
    assert fit.exit_code == 8
    assert "no count up to 1024" in fit.output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": -3}, "layers"),
        ({"hidden_size": 0}, "hidden"),
        ({"num_hidden_layers": float("inf")}, "layers"),
        ({"num_attention_heads": 500, "num_key_value_heads": 3}, "heads"),
        ({"vocab_size": "many"}, "vocab"),
    ],
)
def test_nonsense_models_are_refused_by_name(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    error = run("fit", "--config", huge(tmp_path, **changes), "--gpus", "H100").exception
    assert isinstance(error, UserError), error
    assert message in error.message


def test_the_question_of_fit_loads_no_numpy() -> None:
    # It is answered within a tenth of a second of the start; numpy alone takes longer.
    words = "['fit', '--model', 'llama-3-8b', '--gpus', 'A100', '--count', '8']"
    program = (
        "import sys; from tercio.cli.commands.size import command;"
        f"command({words}, standalone_mode=False); assert 'numpy' not in sys.modules"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(tercio.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
