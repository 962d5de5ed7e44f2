"""`tercio size` from the command line: bodies, exit codes, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

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
