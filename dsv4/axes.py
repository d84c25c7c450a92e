"""Axis expressions: how a declaration writes the shapes of its arrays.

An expression is a name (`T`), a number, or arithmetic over them with `+ - * / % // ceil()` and
comparisons (`K/2`, `ceil(N/128)`, `K % 16 == 0`). Division with `/` must come out even.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from dsv4.errors import SpecError


class Shape(Mapping[str, Any]):
    """Axis sizes, options and scalars of one launch, readable as attributes: `s.T`, `s.group`."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Keep a copy, so that a Shape never changes."""
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        """The value bound to that name."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """Names in binding order."""
        return iter(self._values)

    def __len__(self) -> int:
        """How many names are bound."""
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        """The value bound to that name. Errors: AttributeError."""
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no axis, option or scalar {name!r} is bound") from None

    def __repr__(self) -> str:
        """Axes as `T=7 D=4096`."""
        return " ".join(f"{k}={v}" for k, v in self._values.items())


@functools.cache
def _parse(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise SpecError(f"axis expression {expression!r} is not arithmetic: {error.msg}") from None


def evaluate(expression: str, values: Mapping[str, Any]) -> int | bool:
    """The integer (or truth value) of an expression. Errors: SpecError on names or fractions."""
    try:
        bound = tuple((name, values[name]) for name in _names(expression))
    except KeyError as missing:
        raise SpecError(
            f"{expression}: {missing.args[0]} is not bound (bound: {', '.join(values)})"
        ) from None
    return _evaluated(expression, bound)


# A launch evaluates some ten expressions, the same ones for each layer of each step.
@functools.lru_cache(maxsize=1 << 16)
def _evaluated(expression: str, bound: tuple[tuple[str, Any], ...]) -> int | bool:
    values = dict(bound)
    result = _value(_parse(expression), values, expression)
    if isinstance(result, bool):
        return result
    if isinstance(result, Fraction) and result.denominator != 1:
        raise SpecError(f"{expression} is {result}, not whole, for {Shape(values)!r}")
    return int(result)


@functools.cache
def _names(expression: str) -> tuple[str, ...]:
    found = {n.id for n in ast.walk(_parse(expression)) if isinstance(n, ast.Name)}
    return tuple(sorted(found - {"ceil", "min", "max"}))


def is_name(expression: str) -> bool:
    """Whether the expression is a bare axis name, which an array's shape can bind."""
    return expression.isidentifier()


def _value(node: ast.expr, values: Mapping[str, Any], text: str) -> Any:
    match node:
        case ast.Constant(value=int() as number):
            return Fraction(number)
        case ast.Name(id=name):
            return Fraction(values[name])
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(op, _value(left, values, text), _value(right, values, text), text)
        case ast.BoolOp(op=op, values=parts):
            results = [bool(_value(p, values, text)) for p in parts]
            return all(results) if isinstance(op, ast.And) else any(results)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [_value(n, values, text) for n in (left, *comparators)]
            return all(
                _compare(o, a, b, text) for o, a, b in zip(ops, sides, sides[1:], strict=False)
            )
        case ast.Call(func=ast.Name(id="ceil"), args=[inner]):
            return Fraction(math.ceil(_value(inner, values, text)))
        case ast.Call(func=ast.Name(id="min"), args=[a, b]):
            return min(_value(a, values, text), _value(b, values, text))
        case ast.Call(func=ast.Name(id="max"), args=[a, b]):
            return max(_value(a, values, text), _value(b, values, text))
    raise SpecError(
        f"axis expression {text!r} is more than names, numbers, + - * / % //, ceil, min, max"
    )


def _arithmetic(op: ast.operator, a: Fraction, b: Fraction, text: str) -> Fraction:
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.Div():
            return a / b
        case ast.FloorDiv():
            return Fraction(a // b)
        case ast.Mod():
            return Fraction(a % b)
    raise SpecError(f"axis expression {text!r} uses an operator beyond + - * / % //")


def _compare(op: ast.cmpop, a: Fraction, b: Fraction, text: str) -> bool:
    match op:
        case ast.Eq():
            return a == b
        case ast.NotEq():
            return a != b
        case ast.Lt():
            return a < b
        case ast.LtE():
            return a <= b
        case ast.Gt():
            return a > b
        case ast.GtE():
            return a >= b
    raise SpecError(f"condition {text!r} uses a comparison beyond == != < <= > >=")
