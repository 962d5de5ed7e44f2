"""Sizing over HTTP: the answers of the command line, in a process of its own, with a deadline."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from click.testing import CliRunner

from tercio.api.children import Children
from tercio.api.size_answers import fit, train
from tercio.api.size_bodies import SizeFitBody, SizeTrainBody
from tercio.api.sizing import sizing_tables
from tercio.cli.commands.size import command
from tercio.errors import UserError


def ask(server, verb, body, role="user"):
    raw = msgspec.json.encode(body)
    return server.request("POST", f"/v1/size/{verb}", token=server.token(role), body=raw)


def said(*words):
    done = CliRunner().invoke(command, [*words, "-o", "json"])
    return json.loads(done.output)


def test_a_child_answers_as_the_command_line_does(server):
    reply = ask(server, "finetune", {"model": "llama-3-8b", "gpus": "A100,H100", "tokens": "100M"})
    assert reply.status == 200, reply.body
    told = said("finetune", "--model", "llama-3-8b", "--gpus", "A100,H100", "--tokens", "100M")
    assert reply.body["kind"] == told["kind"] == "SizingFinetune"
    assert reply.body["answers"] == told["answers"]
    assert reply.body["catalogue_date"] == told["catalogue_date"]
    assert reply.body["calibration_date"]


def test_a_refusal_of_a_child_is_one_of_the_server(server):
    reply = ask(server, "fit", {"model": "llama-9"})
    assert reply.status in (400, 404)
    assert "llama-9" in reply.body["detail"]
    assert reply.body["field"] == "model"


def test_a_body_is_checked_before_a_child_is_made(server):
    reply = ask(server, "serve", {"model": "llama-3-8b"})
    assert reply.status == 400
    assert "rps" in reply.body["detail"]
    reply = ask(server, "serve", {"model": "llama-3-8b", "rps": 1, "gpu": "H100"})
    assert "gpus" in reply.body["hint"]


def test_training_is_ranked_as_on_the_command_line():
    body = SizeTrainBody(model="llama-3-8b", tokens="1B", gpus="H100", counts="8,16")
    found = train(body, sizing_tables())
    told = said(
        "train", "--model", "llama-3-8b", "--tokens", "1B", "--gpus", "H100", "--counts", "8,16"
    )
    assert json.loads(msgspec.json.encode(found.answers)) == told["result"]["candidates"]
    assert list(found.assumed) == told["result"]["assumptions"]


def test_too_many_counts_and_no_parts_are_refused():
    counts = ",".join(str(8 * n) for n in range(1, 30))
    with pytest.raises(UserError) as caught:
        train(SizeTrainBody(model="llama-3-8b", tokens="1B", counts=counts), sizing_tables())
    assert caught.value.field == "counts"
    with pytest.raises(UserError) as caught:
        fit(SizeFitBody(model="llama-3-8b", gpus=" , "), sizing_tables())
    assert caught.value.field == "gpus"


def test_the_catalogue_names_models_parts_prices_and_sources(server):
    body = server.request("GET", "/v1/size", token=server.token("viewer")).body
    assert "Qwen/Qwen3-0.6B" in body["models"]
    parts = {part["name"]: part for part in body["parts"]}
    assert parts["H100-SXM5-80GB"]["usd_h"] > 0
    assert parts["H100-SXM5-80GB"]["source"]


def test_a_question_past_its_deadline_is_given_up_and_its_process_ended():
    async def play():
        children = Children()
        with pytest.raises(UserError) as caught:
            await children.ask("size_fit", {"body": {}}, deadline_s=0.0)
        return caught.value, children

    error, children = asyncio.run(play())
    assert error.code == "unavailable"
    assert children._running == set()
