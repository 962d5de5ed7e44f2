"""The small language of `nodes.match`: which nodes a job may use. No names, calls or code of ours.

    expression := or-chain of `&&`-chains of negations of comparisons, with parentheses
    comparison := value (== != < <= > >= value | in values | not in values)
    value      := 'text' | "text" | 12 | 256GiB | true | false | [value, ...]
                | name | pool | site | device | devices | cpus | memory | labels['rack']

`and`, `or` and `not` may be written for `&&`, `||` and `!`. `device` stands for every device
type of the node: `device == 'H100'` holds when one of them is H100, `!=` when none is.
`devices` is the number of devices, `cpus` cores, `memory` bytes (`256GiB` may be written).
`labels['rack']` is the text of a label; a node without the label differs from every text.

Types are checked when an expression is compiled, so that `matches` cannot fail.

>>> compile_match("pool == 'a' && !('old' in labels)").text
"pool == 'a' && !('old' in labels)"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from tercio.errors import UserError, did_you_mean
from tercio.model.node import NodeSpec
from tercio.model.units import parse_memory_bytes

MAX_LENGTH: Final = 4096
MAX_DEPTH: Final = 32

_TOKEN: Final = re.compile(
    r"\s*(?:"
    r"(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<number>\d+(?:\.\d+)?(?:[kKmMgGtTpP]i?[bB]?)?(?![\w.]))"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[!<>()\[\],])"
    r")",
    re.ASCII,
)
_WORD_SIGNS: Final = {"and": "&&", "or": "||", "not": "!"}
_COMPARISONS: Final = ("==", "!=", "<", "<=", ">", ">=", "in")
_FIXES: Final = {"=": "write == to compare", "&": "write &&", "|": "write ||", "~": "write =="}

Test = Callable[[NodeSpec], bool]


class Kind(StrEnum):
    """Type of a value, known when the expression is compiled."""

    BOOL = "a condition"
    TEXT = "a text"
    NUMBER = "a number"
    TEXTS = "a list of texts"
    NUMBERS = "a list of numbers"
    LABELS = "labels"


class Matcher:
    """A compiled expression."""

    __slots__ = ("_test", "text")

    def __init__(self, text: str, test: Test) -> None:
        self.text = text
        self._test = test

    def matches(self, node: NodeSpec) -> bool:
        """Whether the node may be used. Never raises."""
        return self._test(node)


def compile_match(text: str, *, field: str | None = None) -> Matcher:
    """Compile an expression.

    Raises:
        UserError: the text is no expression; the message names the column, the hint the fix.
    """
    if len(text) > MAX_LENGTH:
        raise UserError(
            f"expression of {len(text)} characters",
            hint=f"write at most {MAX_LENGTH}",
            field=field,
        )
    parser = _Parser(text, field)
    value = parser.expression(0)
    parser.expect_end()
    return Matcher(text, parser.condition(value))


class _Token:
    __slots__ = ("column", "kind", "text")

    def __init__(self, kind: str, text: str, column: int) -> None:
        self.kind = kind
        self.text = text
        self.column = column


class _Value:
    """A typed value: exactly one of the readers is set, the one of its kind."""

    __slots__ = ("column", "kind", "number", "numbers", "test", "text", "texts")

    def __init__(
        self,
        kind: Kind,
        column: int,
        *,
        test: Test | None = None,
        text: Callable[[NodeSpec], str | None] | None = None,
        number: Callable[[NodeSpec], float] | None = None,
        texts: Callable[[NodeSpec], tuple[str, ...]] | None = None,
        numbers: tuple[float, ...] = (),
    ) -> None:
        self.kind = kind
        self.column = column
        self.test = test
        self.text = text
        self.number = number
        self.texts = texts
        self.numbers = numbers


def _device_types(node: NodeSpec) -> tuple[str, ...]:
    return tuple(dict.fromkeys(device.type for device in node.devices))


_TEXT_NAMES: Final[dict[str, Callable[[NodeSpec], str | None]]] = {
    "name": lambda node: node.name,
    "pool": lambda node: node.pool,
    "site": lambda node: node.site,
}
_NUMBER_NAMES: Final[dict[str, Callable[[NodeSpec], float]]] = {
    "devices": lambda node: len(node.devices),
    "cpus": lambda node: node.cpus_milli / 1000,
    "memory": lambda node: node.memory_bytes,
}
NAMES: Final = (*_TEXT_NAMES, "device", *_NUMBER_NAMES, "labels", "true", "false")


class _Parser:
    """Recursive descent; every rule returns a typed value or raises at a column."""

    def __init__(self, text: str, field: str | None) -> None:
        self._source = text
        self._field = field
        self._tokens = self._split(text)
        self._next = 0

    def error(self, column: int, problem: str, fix: str) -> UserError:
        return UserError(
            f"{self._source!r}, column {column}: {problem}", hint=fix, field=self._field
        )

    def _split(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                column = place + len(text[place:]) - len(text[place:].lstrip()) + 1
                sign = text[column - 1]
                fix = _FIXES.get(sign, f"remove {sign!r}, or write it inside quotes")
                if sign in "'\"":
                    fix = f"close the text with {sign}"
                raise self.error(column, f"{sign!r} is not understood", fix)
            kind = found.lastgroup or ""
            word = found.group(kind)
            if kind == "word" and word in _WORD_SIGNS:
                tokens.append(_Token("sign", _WORD_SIGNS[word], found.start(kind) + 1))
            else:
                tokens.append(_Token(kind, word, found.start(kind) + 1))
            place = found.end()
        tokens.append(_Token("end", "", len(text) + 1))
        return tokens

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        if token.kind != "end":
            self._next += 1
        return token

    def _accept(self, sign: str) -> _Token | None:
        token = self._peek()
        if token.text == sign and token.kind in ("sign", "word"):
            return self._take()
        return None

    def _expect(self, sign: str) -> None:
        if self._accept(sign) is None:
            token = self._peek()
            raise self.error(token.column, f"{sign!r} is missing", f"write {sign!r} here")

    def expect_end(self) -> None:
        token = self._peek()
        if token.kind != "end":
            raise self.error(
                token.column, f"{token.text!r} follows a complete expression", "join by && or ||"
            )

    def condition(self, value: _Value) -> Test:
        if value.test is None:
            raise self.error(
                value.column,
                f"{value.kind} is no condition",
                "compare it, for example pool == 'a' or 'old' in labels",
            )
        return value.test

    def expression(self, depth: int) -> _Value:
        if depth > MAX_DEPTH:
            raise self.error(
                self._peek().column, "too deeply nested", f"use at most {MAX_DEPTH} levels"
            )
        first = self._conjunction(depth)
        if self._peek().text != "||":
            return first
        tests = [self.condition(first)]
        while self._accept("||"):
            tests.append(self.condition(self._conjunction(depth)))
        return _Value(Kind.BOOL, first.column, test=lambda node: any(t(node) for t in tests))

    def _conjunction(self, depth: int) -> _Value:
        first = self._negation(depth)
        if self._peek().text != "&&":
            return first
        tests = [self.condition(first)]
        while self._accept("&&"):
            tests.append(self.condition(self._negation(depth)))
        return _Value(Kind.BOOL, first.column, test=lambda node: all(t(node) for t in tests))

    def _negation(self, depth: int) -> _Value:
        sign = self._accept("!")
        if sign is None:
            return self._comparison(depth)
        is_odd = True
        while self._accept("!"):
            is_odd = not is_odd
        test = self.condition(self._comparison(depth))
        if is_odd:
            return _Value(Kind.BOOL, sign.column, test=lambda node: not test(node))
        return _Value(Kind.BOOL, sign.column, test=test)

    def _comparison(self, depth: int) -> _Value:
        left = self._operand(depth)
        token = self._peek()
        is_negated = token.text == "!" and self._tokens[self._next + 1].text == "in"
        if is_negated:
            self._take()
            token = self._peek()
        if token.text not in _COMPARISONS or token.kind == "text":
            return left
        self._take()
        right = self._operand(depth)
        if token.text == "in":
            test = self._membership(left, right, token.column)
        elif token.text in ("==", "!="):
            test = self._equality(left, right, token.column)
            is_negated = token.text == "!="
        else:
            test = self._order(left, right, token)
        if is_negated:
            return _Value(Kind.BOOL, left.column, test=lambda node: not test(node))
        return _Value(Kind.BOOL, left.column, test=test)

    def _membership(self, left: _Value, right: _Value, column: int) -> Test:
        if right.kind is Kind.LABELS and left.text is not None:
            key = left.text
            return lambda node: key(node) in node.labels
        if right.texts is not None and left.text is not None:
            one, many = left.text, right.texts
            return lambda node: one(node) in many(node)
        if right.texts is not None and left.texts is not None:
            ours, theirs = left.texts, right.texts
            return lambda node: any(text in theirs(node) for text in ours(node))
        if right.kind is Kind.NUMBERS and left.number is not None:
            number, numbers = left.number, right.numbers
            return lambda node: number(node) in numbers
        raise self.error(
            column,
            f"{left.kind} cannot be in {right.kind}",
            "write 'old' in labels, or pool in ['a', 'b']",
        )

    def _equality(self, left: _Value, right: _Value, column: int) -> Test:
        if left.text is not None and right.text is not None:
            one, other = left.text, right.text
            return lambda node: one(node) == other(node) and one(node) is not None
        if left.number is not None and right.number is not None:
            a, b = left.number, right.number
            return lambda node: a(node) == b(node)
        if left.test is not None and right.test is not None:
            p, q = left.test, right.test
            return lambda node: p(node) == q(node)
        for many, single in ((left, right), (right, left)):
            if many.texts is not None and single.text is not None:
                texts, text = many.texts, single.text
                return lambda node: text(node) in texts(node)
        raise self._mismatch(left, right, column)

    def _order(self, left: _Value, right: _Value, sign: _Token) -> Test:
        if left.number is None or right.number is None:
            raise self._mismatch(left, right, sign.column)
        a, b = left.number, right.number
        match sign.text:
            case "<":
                return lambda node: a(node) < b(node)
            case "<=":
                return lambda node: a(node) <= b(node)
            case ">":
                return lambda node: a(node) > b(node)
            case _:
                return lambda node: a(node) >= b(node)

    def _mismatch(self, left: _Value, right: _Value, column: int) -> UserError:
        fix = "compare values of one kind: pool == 'a', devices >= 4, memory > 256GiB"
        return self.error(column, f"{left.kind} cannot be compared with {right.kind}", fix)

    def _operand(self, depth: int) -> _Value:
        token = self._take()
        if token.kind == "text":
            text = token.text[1:-1]
            return _Value(Kind.TEXT, token.column, text=lambda _: text)
        if token.kind == "number":
            number = _read_number(token.text)
            return _Value(Kind.NUMBER, token.column, number=lambda _: number)
        if token.kind == "word" and token.text != "in":
            return self._name(token)
        if token.text == "(":
            value = self.expression(depth + 1)
            self._expect(")")
            return value
        if token.text == "[":
            return self._list(token.column, depth + 1)
        problem = (
            "the expression ends here" if token.kind == "end" else f"unexpected {token.text!r}"
        )
        raise self.error(token.column, problem, "write a value such as pool, 'a' or labels['rack']")

    def _name(self, token: _Token) -> _Value:
        word, column = token.text, token.column
        if word in _TEXT_NAMES:
            return _Value(Kind.TEXT, column, text=_TEXT_NAMES[word])
        if word in _NUMBER_NAMES:
            return _Value(Kind.NUMBER, column, number=_NUMBER_NAMES[word])
        if word == "device":
            return _Value(Kind.TEXTS, column, texts=_device_types)
        if word in ("true", "false"):
            is_true = word == "true"
            return _Value(Kind.BOOL, column, test=lambda _: is_true)
        if word == "labels":
            if not self._accept("["):
                return _Value(Kind.LABELS, column)
            key = self._take()
            if key.kind != "text":
                raise self.error(key.column, "a label's name is missing", "write labels['rack']")
            self._expect("]")
            label = key.text[1:-1]
            return _Value(Kind.TEXT, column, text=lambda node: node.labels.get(label))
        known = f"the names are {', '.join(NAMES)}; text goes in quotes"
        raise self.error(column, f"{word!r} is not a name", did_you_mean(word, NAMES) or known)

    def _list(self, column: int, depth: int) -> _Value:
        values: list[_Value] = []
        while not self._accept("]"):
            if values:
                self._expect(",")
            token = self._peek()
            if token.kind not in ("text", "number"):
                raise self.error(token.column, "a list holds texts or numbers", "write ['a', 'b']")
            values.append(self._operand(depth))
        kinds = list(dict.fromkeys(value.kind for value in values))
        if len(kinds) != 1:
            fix = "write texts only, or numbers only, such as ['a', 'b']"
            raise self.error(column, "a list needs values of one kind", fix)
        source = self._tokens[self._next - 2 * len(values) : self._next]
        if kinds[0] is Kind.TEXT:
            texts = tuple(token.text[1:-1] for token in source if token.kind == "text")
            return _Value(Kind.TEXTS, column, texts=lambda _: texts)
        numbers = tuple(_read_number(t.text) for t in source if t.kind == "number")
        return _Value(Kind.NUMBERS, column, numbers=numbers)


def _read_number(text: str) -> float:
    return float(text) if text[-1].isdigit() else parse_memory_bytes(text)
