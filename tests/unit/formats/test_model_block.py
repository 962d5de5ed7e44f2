"""The `model:` block, and what `devices: auto` asks of a file."""

from __future__ import annotations

import json

import pytest

from tercio.errors import UserError
from tercio.formats.native import read_job
from tercio.model.sizing import ModelSpec

AUTO = "per_task: {devices: auto}\nrun: x\n"


def model_of(text: str) -> ModelSpec:
    (spec,) = read_job(f"{AUTO}{text}", source="a.yaml").specs
    assert spec.groups[0].per_task.is_auto
    assert spec.model is not None
    return spec.model


def test_a_name_alone_is_a_lora_of_unknown_length():
    model = model_of("model: llama-3-8b")
    assert (model.name, model.method, model.tokens, model.seq) == ("llama-3-8b", "lora", None, 4096)


def test_counts_are_written_as_people_do():
    model = model_of("model: {name: m, method: pretrain, tokens: 1.5T, seq: 8k, batch_tokens: 4M}")
    assert (model.tokens, model.seq, model.batch_tokens) == (1.5e12, 8000, 4e6)
    assert model_of("model: {name: m, tokens: 2e9, seq: 8192}").tokens == 2e9


def test_a_configuration_is_kept_as_text():
    model = model_of("model: {config: {hidden_size: 64, num_hidden_layers: 2, tied: true}}")
    assert model.config is not None
    assert json.loads(model.config) == {"hidden_size": 64, "num_hidden_layers": 2, "tied": True}


def test_a_model_may_stand_beside_written_devices():
    text = "per_task: {devices: H100:2}\nmodel: llama-3-8b\nrun: x"
    (spec,) = read_job(text, source="a.yaml").specs
    assert not spec.groups[0].per_task.is_auto
    assert spec.model is not None


def test_the_command_line_can_ask_for_auto():
    (spec,) = read_job("model: m\nrun: x", source="a", overrides={"gpus": "auto"}).specs
    assert spec.groups[0].per_task.is_auto


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        (AUTO, "devices: auto needs a model", "model: {name:"),
        (f"{AUTO}tasks: 4\nmodel: m", "tasks: sizing chooses the tasks", "remove tasks"),
        (f"{AUTO}model: {{method: lora}}", "model: names no model", "model: {name:"),
        (f"{AUTO}model: {{name: m, method: sft}}", "model.method: 'sft'", "pretrain, full, lora"),
        (f"{AUTO}model: {{name: m, tokens: lots}}", "model.tokens: 'lots'", "100B or 1T"),
        (f"{AUTO}model: {{name: m, tokens: 0}}", "model.tokens: '0' is out of bounds", "from 1"),
        (f"{AUTO}model: {{name: m, method: pretrain}}", "needs the number of tokens", "100B"),
        (f"{AUTO}model: {{name: m, token: 1B}}", "model.token", "'tokens'"),
        (f"{AUTO}model: {{name: m, config: [1]}}", "model.config: a list", "config.json"),
        (f"{AUTO}model: {{name: m, devices_max: 0}}", "model.devices_max", "from 1 to"),
        (
            "groups: [{name: a, per_task: {devices: auto}}, {name: b}]\nmodel: m\nrun: x",
            "is for a job of one group",
            "each group",
        ),
    ],
)
def test_a_wrong_block_names_field_value_and_fix(text, words, hint):
    with pytest.raises(UserError) as caught:
        read_job(text, source="a.yaml")
    assert words in caught.value.message
    assert caught.value.hint is not None
    assert hint in caught.value.hint
