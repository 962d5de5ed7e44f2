"""Reads what `tercio size` is given: models, parts, site files, measured tables.

The sizing package is imported inside the functions, as everywhere in the command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from tercio.errors import UserError

if TYPE_CHECKING:
    from tercio.model.resources import DeviceRequest
    from tercio.sizing.architecture import ModelShape
    from tercio.sizing.calibration import Calibration
    from tercio.sizing.catalogue import Catalogue, Gpu
    from tercio.sizing.collectives import CollectiveFits
    from tercio.sizing.config_files import Value
    from tercio.sizing.fit import FitCase
    from tercio.sizing.kernels import GemmTable


def write_file(path: str, body: bytes) -> None:
    """Write a file, or raise UserError."""
    try:
        Path(path).write_bytes(body)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", field="out") from error


def read_file(path: str, field: str) -> bytes:
    """Read a file, or raise UserError naming the option."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", field=field) from error


def read_mapping(path: str, field: str) -> dict[str, object]:
    """A YAML or JSON file that holds a mapping."""
    import yaml

    try:
        loaded = yaml.safe_load(read_file(path, field).decode("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is neither JSON nor YAML: {error}", field=field) from error
    if not isinstance(loaded, dict):
        raise UserError(f"{path} holds no mapping", field=field)
    return loaded


def load_catalogue(site: str | None) -> Catalogue:
    """The packaged catalogue with the site's entries on top."""
    from tercio.assets import load_table
    from tercio.sizing.packaged import build_catalogue
    from tercio.sizing.site import parse_site, with_site

    catalogue = build_catalogue(load_table)
    return with_site(catalogue, parse_site(read_mapping(site, "site"))) if site else catalogue


class Speeds(TypedDict):
    """The measured kernel and collective times that every predictor reads."""

    kernels: GemmTable
    fits: CollectiveFits


def load_speeds() -> Speeds:
    """The measured kernel and collective times."""
    from tercio.assets import load_table
    from tercio.sizing.packaged import build_collective_fits, build_gemm_table

    return {"kernels": build_gemm_table(load_table), "fits": build_collective_fits(load_table)}


def load_calibration() -> Calibration:
    """The shipped calibration."""
    from tercio.assets import load_table
    from tercio.sizing.packaged import build_calibration

    return build_calibration(load_table)


def shape_of(catalogue: Catalogue, model: str | None, config: str | None) -> ModelShape:
    """The model that the options name, from the catalogue or a configuration file."""
    from tercio.sizing.config_files import shape_from_config

    if config:
        mapping = cast("Mapping[str, Value]", read_mapping(config, "config"))
        return shape_from_config(mapping, name=model or Path(config).stem)
    if not model:
        raise UserError(
            "no model given", field="model", hint="--model llama-3-70b, or --config config.json"
        )
    return catalogue.model(model)


def gpus_of(catalogue: Catalogue, names: str) -> tuple[Gpu, ...]:
    """The parts that a comma-separated list names; `any` stands for all that can be sized."""
    if names.strip().lower() == "any":
        return tuple(
            gpu
            for gpu in catalogue.gpus.values()
            if gpu.memory_bytes_per_s
            and (gpu.bf16_flops or gpu.fp16_flops)
            and gpu.status == "shipping"
        )
    return tuple(catalogue.gpu(name) for name in names.split(",") if name.strip())


def fit_cases(path: str, catalogue: Catalogue, gpus: str) -> list[FitCase]:
    """The questions that a job file asks: one for each alternative of its devices.

    `devices: auto` asks for one device of each part that `gpus` names.
    """
    import json

    from tercio.formats.native import read_job
    from tercio.sizing.config_files import shape_from_config
    from tercio.sizing.fit import FitCase

    (spec, *more) = read_job(read_file(path, "job").decode(), source=path).specs
    if more or spec.model is None:
        wrong = "several jobs" if more else "no model: block"
        hint = "write model: {name: llama-3-8b, method: lora}" if not more else "write one job"
        raise UserError(f"{path}: {wrong}", field="model", hint=hint)
    model, group = spec.model, spec.groups[0]
    named = model.name or Path(path).stem
    shape = (
        catalogue.model(named)
        if model.config is None
        else shape_from_config(json.loads(model.config), name=named)
    )
    wanted = [
        (catalogue.gpu(card_name(request)), request.count * group.tasks)
        for request in group.per_task.devices
        if request.type and request.count
    ] or [(gpu, 1) for gpu in gpus_of(catalogue, gpus)]
    return [
        FitCase(
            shape=shape,
            method=model.method,
            gpu=gpu,
            gpus=count,
            seq=model.seq,
            micro_batch=model.micro_batch,
        )
        for gpu, count in wanted
    ]


def card_name(request: DeviceRequest) -> str:
    """The catalogue's name of a requested type: with the card size where one is asked for."""
    size = f"-{request.card_bytes / 1e9:g}GB" if request.card_bytes else ""
    return f"{request.type}{size}"


def counts_of(text: str) -> tuple[int, ...]:
    """Device counts of a comma-separated list, ascending."""
    from tercio.sizing.quantities import parse_count

    return tuple(sorted({int(parse_count(part, field="counts")) for part in text.split(",")}))


def read_tables(directory: str | None) -> dict[str, list[dict[str, str]]]:
    """The measured tables that are there, by file stem. CSV or gzipped CSV."""
    import gzip

    from tercio.sizing.packaged import parse_rows
    from tercio.sizing.validate import COLUMNS, OPTIONAL

    where = Path(
        directory or os.path.join(os.environ.get("TERCIO_SHARED", "../shared"), "data", "sizing")
    )
    if not where.is_dir():
        raise UserError(
            f"no directory {where}", field="data", hint="give --data DIR, or set TERCIO_SHARED"
        )
    found: dict[str, list[dict[str, str]]] = {}
    for name in (*COLUMNS, *OPTIONAL):
        plain, packed = where / f"{name}.csv", where / f"{name}.csv.gz"
        if plain.is_file():
            found[name] = parse_rows(plain.read_bytes())
        elif packed.is_file():
            found[name] = parse_rows(gzip.decompress(packed.read_bytes()))
    return found
