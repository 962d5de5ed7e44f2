import json
from pathlib import Path

import jsonschema
import pytest
from job_texts import CONTRACT, EVERYTHING, plain
from test_bad_jobs import BY_HAND

import tercio.formats
from tercio.errors import UserError
from tercio.formats import groups, native, schema
from tercio.formats.document import read_documents
from tercio.formats.native import read_job

FILE = Path(tercio.formats.__file__).parent / "job.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(schema.job_schema())

GOOD = [
    CONTRACT,
    EVERYTHING,
    "run: a",
    "run: a\ntasks: 2..8\nper_task: {devices: 8, cpus: 1.5, memory: 64GiB}",
    "run: a\nper_task: {devices: 0.5}",
    "run: a\nname: 007\npriority: '3'",
    "run: a\narray: '0-99:3%4'",
    "run: a\ntime: {limit: '1:30:00', expected: 90}",
    "run: a\ndepends_on: [job-00001]",
    "run: a\ntopology: {same: rack}",
    "run: a\ncheckpoint: {every: auto, grace: 0}",
]

# What only the reader can see: numbers inside texts, names against each other, tables.
BEYOND_A_SCHEMA = (
    "tasks: 8..2", "tasks: 0..2", "H10:8", "H100:0", "cpus: 0}", "9999999TiB", "2GiB}", "[{}, {}]",
    "{name: a}, {name: a}", "beside", "tasks: 2\ngroups", "subgroups: [{name: x}]", "min_subgroups",
    "same: rak", "prefer: block", "spread: rack", "leader: ", "match:", "limit: 0", "earliest:",
    "env: {A: b}\nsecrets", "grace: 2d", "job-1, job-1", "9-0", "0-9:0", "0-9,5", "0-9999999",
    "speed: {H10:", "H100: 1, h100: 2", "tasks: [2, 1]", "units_per_s: []",
    "labels: {\"a\\n", "run: a\nmounts", "/a:/b, /c:/b", "checks: {allreduce",
)  # fmt: skip


def test_the_shipped_file_is_current():
    assert FILE.read_text(encoding="utf-8") == schema.schema_text(), (
        "write tercio.formats.schema.schema_text() to job.schema.json"
    )


def test_it_is_a_valid_schema_of_the_named_dialect():
    tree = json.loads(schema.schema_text())
    assert tree["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(tree)


def test_it_has_the_keys_of_the_reader_and_describes_them():
    tree = schema.job_schema()
    assert list(tree["properties"]) == list(native.JOB_KEYS)
    assert all(inner["description"] for inner in tree["properties"].values())
    assert list(schema.DESCRIPTIONS) == [
        key for key in schema.DESCRIPTIONS if key in native.JOB_KEYS
    ]
    assert list(tree["$defs"]["group"]["properties"]) == list(groups.GROUP_KEYS)
    assert tree["required"] == ["run"]


@pytest.mark.parametrize("text", GOOD)
def test_both_accept_good_files(text):
    read_job(text, source="good.yaml")
    assert list(VALIDATOR.iter_errors(plain(read_documents(text, source="x")[0]))) == []


@pytest.mark.parametrize("text", [text for text, *_ in BY_HAND])
def test_both_refuse_bad_files(text):
    with pytest.raises(UserError):
        read_job(text, source="bad.yaml")
    refused = list(VALIDATOR.iter_errors(plain(read_documents(text, source="x")[0])))
    if not any(part in text for part in BEYOND_A_SCHEMA):
        assert refused


def test_the_exceptions_are_few():
    refused = [
        text
        for text, *_ in BY_HAND
        if list(VALIDATOR.iter_errors(plain(read_documents(text, source="x")[0])))
    ]
    assert len(refused) >= 0.7 * len(BY_HAND)
