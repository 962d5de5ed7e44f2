"""Option tables of the programs that list and stop jobs, read as getopt reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tercio.errors import UserError, did_you_mean


class Words(NamedTuple):
    """What stood on a command line: options by long name, and the other words."""

    options: dict[str, str]
    rest: list[str]


def parse(words: Sequence[str], *, valued: Mapping[str, str], flags: Mapping[str, str]) -> Words:
    """Read a command line; a value given twice counts the last time.

    Args:
        words: without the program's name.
        valued: short name by long name, of options that take a value; '' for none.
        flags: the same of options without one.

    Raises:
        UserError: an unknown option, or one without its value.
    """
    shorts = {short: name for name, short in [*valued.items(), *flags.items()] if short}
    options: dict[str, str] = {}
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word == "--":
            rest += queue
            break
        if not word.startswith("-") or word == "-":
            rest.append(word)
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _canonical(name, [*valued, *flags])
            if name in valued and not equals:
                value = _next(queue, f"--{name}")
            options[name] = value
        else:
            _cluster(word, queue, shorts, valued, options)
    return Words(options, rest)


def _cluster(
    word: str,
    queue: list[str],
    shorts: Mapping[str, str],
    valued: Mapping[str, str],
    options: dict[str, str],
) -> None:
    letters = word[1:]
    while letters:
        name = shorts.get(letters[0])
        if name is None:
            known = " ".join(f"-{short}" for short in shorts)
            raise UserError(f"-{letters[0]} is no option here", hint=f"known are {known}")
        if name in valued:
            options[name] = letters[1:].removeprefix("=") or _next(queue, word)
            return
        options[name] = ""
        letters = letters[1:]


def _next(queue: list[str], name: str) -> str:
    if not queue:
        raise UserError(f"{name} has no value", hint="write it behind")
    return queue.pop(0)


def _canonical(name: str, known: Sequence[str]) -> str:
    if name in known:
        return name
    begun = [word for word in known if name and word.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    hint = did_you_mean(name, known) or f"known are {', '.join(f'--{word}' for word in known)}"
    raise UserError(f"--{name} is no option here", hint=hint)
