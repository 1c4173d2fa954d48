"""Numbers and findings in words: one place for rounding, units and the marks of a verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

THIN = "\u202f"
MINUS = "\u2212"

#: verdict -> (symbol, the symbol where only ASCII can be shown)
SYMBOLS = {
    "better": ("✓", "+"),
    "worse": ("✗", "x"),
    "equivalent": ("=", "="),
    "inconclusive": ("?", "?"),
    "no data": ("–", "-"),
}

#: What a substrate is, for readers who do not know its name.
SUBSTRATES = {
    "TCG": "emulated in software (TCG), not a figure of hardware",
    "KVM": "run by the processor's virtualization hardware (KVM)",
    "host CPU": "run by the processor itself",
}

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_ASCII = str.maketrans({MINUS: "-", THIN: " ", "\u00a0": " ", "–": "-", "±": "+-", "µ": "u",
                        "×": "x", "†": "*", "✓": "+", "✗": "x", "·": ",", "…": "..."})


_UNITS = {"us": "µs", "usec": "µs"}


def unit(name: str) -> str:
    """A unit as it is printed."""
    return _UNITS.get(name, name)


def plain_number(value: float) -> str:
    """A number that a person chose, as it was written: 2, 0.5."""
    return _signed(f"{value:.6g}")


def absent(value: Any) -> bool:
    """Whether a number is missing (None, NaN or infinite)."""
    return value is None or not isinstance(value, int | float) or not math.isfinite(value)


def to_ascii(text: str) -> str:
    """The text for a terminal that cannot show more than ASCII."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def _signed(text: str) -> str:
    return text.replace("-", MINUS)


def fixed(value: float, decimals: int) -> str:
    """A number with a fixed number of decimals, thousands set apart by thin spaces."""
    text = f"{value:,.{max(decimals, 0)}f}".replace(",", THIN)
    if float(f"{value:.{max(decimals, 0)}f}") == 0:
        text = text.lstrip("-")
    return _signed(text)


def number(value: float | None, digits: int = 4) -> str:
    """A number to ``digits`` significant digits; "–" when it is missing."""
    if absent(value):
        return "–"
    value = float(value)
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4:
        factor, power = f"{value:.{digits - 1}e}".split("e")
        return _signed(f"{factor} × 10^{int(power)}")
    return fixed(value, digits - 1 - size)


def with_interval(mean: float, lo: float, hi: float) -> tuple[str, str]:
    """(mean, "lo to hi"), rounded so that the half width keeps two digits."""
    if absent(mean):
        return "–", "–"
    if absent(lo) or absent(hi) or hi <= lo:
        return number(mean), "–"
    decimals = min(max(1 - math.floor(math.log10((hi - lo) / 2)), 0), 9)
    if abs(mean) > 0:
        decimals = min(decimals, max(5 - math.floor(math.log10(abs(mean))), 0))
    return fixed(mean, decimals), f"{fixed(lo, decimals)} to {fixed(hi, decimals)}"


def percent(value: float | None) -> str:
    """A percentage without its sign for "%": one decimal below 10, none above."""
    if absent(value):
        return "–"
    return fixed(value, 1 if abs(value) < 9.95 else 0)


def times(cost_pct: float) -> str:
    """A cost as a factor: 1140 -> "12.4"."""
    factor = 1 + cost_pct / 100
    return fixed(factor, 1 if factor < 99.5 else 0)


def large(cost_pct: float) -> bool:
    """Whether a cost reads better as a factor than as a percentage."""
    return cost_pct >= 200


def cost(cost_pct: float, lo: float, hi: float, verdict: str, margin: float) -> str:
    """A cost in plain words: "costs 31 % more (28 to 34)". All in percent."""
    if absent(cost_pct):
        return "cannot be told"
    if absent(lo) or absent(hi):
        return f"costs {_side(cost_pct)}, give or take an unknown amount"
    if verdict == "inconclusive":
        return f"may cost {_range(lo, hi)}"
    if verdict == "equivalent":
        return f"costs the same within {plain_number(margin)}{THIN}% ({_range(lo, hi)})"
    if large(cost_pct):
        return f"costs {times(cost_pct)} times as much ({times(lo)} to {times(hi)})"
    if cost_pct < 0:
        lo, hi = -hi, -lo
    return f"costs {_side(cost_pct)} ({percent(lo)} to {percent(hi)})"


def _range(lo: float, hi: float) -> str:
    """"0.4 to 1.2 % more", "0.4 % less to 1.2 % more"."""
    if lo >= 0 and not large(hi):
        return f"{percent(lo)} to {_side(hi)}"
    if hi <= 0:
        return f"{percent(-hi)} to {_side(lo)}"
    if large(lo):
        return f"{times(lo)} to {_side(hi)}"
    return f"{_side(lo)} to {_side(hi)}"


def _side(value: float) -> str:
    if large(value):
        return f"{times(value)} times as much"
    return f"{percent(abs(value))}{THIN}% {'less' if value < 0 else 'more'}"


def cost_short(cost_pct: float) -> str:
    """A cost for a narrow column: "+31 %", "12.4×"."""
    if absent(cost_pct):
        return "–"
    if large(cost_pct):
        return f"{times(cost_pct)}×"
    text = percent(cost_pct)
    sign = "" if text.startswith(MINUS) or text in ("0", "0.0") else "+"
    return f"{sign}{text}{THIN}%"


def span_short(lo: float, hi: float) -> str:
    """An interval of a cost for a narrow column: "28 to 34 %", "11 to 13×", "90 % to 3.6×"."""
    if absent(lo) or absent(hi):
        return "–"
    if large(lo):
        return f"{times(lo)} to {times(hi)}×"
    if large(hi):
        return f"{percent(lo)}{THIN}% to {times(hi)}×"
    return f"{percent(lo)} to {percent(hi)}{THIN}%"


def noise(lo: float, hi: float) -> str:
    """The noise floor, the interval of the baseline against itself: "−0.6 to 0.8 %"."""
    return span_short(lo, hi)


def p_value(value: float | None) -> str:
    """A p-value: "< 0.001", "0.034"."""
    if absent(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.0995 else f"{value:.2f}"


def quantity(key: str, value: Any) -> str:
    """A value of a point: ``bytes`` in binary units, words as they are, other numbers named."""
    if isinstance(value, str):
        return value
    if key == "bytes" and isinstance(value, int | float) and value >= 0:
        return binary(value)
    text = json.dumps(value) if isinstance(value, bool | list | dict) or value is None else None
    text = text or (f"{value:g}" if isinstance(value, float) else str(value))
    if text == "1":
        key = key[:-2] if key.endswith("sses") else key.removesuffix("s")
    return f"{text} {key}" if not isinstance(value, bool) else f"{key}: {text}"


def binary(value: float) -> str:
    """A size in bytes: 8388608 -> "8 MiB"."""
    power = 0
    while value >= 1024 and power < len(_BINARY) - 1:
        value, power = value / 1024, power + 1
    return f"{value:.3g} {_BINARY[power]}"


def point(text: str, without: str | None = None) -> str:
    """A point (canonical JSON) in words, leaving out the key ``without``."""
    items = _object(text)
    return ", ".join(quantity(k, v) for k, v in items.items() if k != without)


def params(text: str) -> str:
    """Parameters (canonical JSON) in words: "n = 1000, variant = blas"."""
    return ", ".join(f"{key} = {value}" for key, value in _object(text).items())


def plain(name: str) -> str:
    """A metric's name as words."""
    return name.replace("_", " ")


def _object(text: Any) -> Mapping[str, Any]:
    if isinstance(text, Mapping):
        return text
    try:
        value = json.loads(text or "{}")
    except (TypeError, ValueError):
        return {"": str(text)}
    return value if isinstance(value, dict) else {"": value}


def substrate(name: str) -> str:
    """What a substrate is, in words."""
    return SUBSTRATES.get(name, f"run on {name}")


def duration(seconds: float | None) -> str:
    """A time in words: "4 min 12 s"."""
    if absent(seconds):
        return "–"
    if seconds < 0.9995:
        return f"{number(1000 * seconds, 3 if seconds >= 0.1 else 2)} ms"
    if seconds < 59.95:
        return f"{number(seconds, 3)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min{f' {rest} s' if rest else ''}"


def joined(items: list[str]) -> str:
    """"a, b and c"."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def scalar(value: Any) -> str:
    """A fact of a machine as text."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return plain_number(value)
    if isinstance(value, list | tuple):
        return ", ".join(scalar(item) for item in value) or "none"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {scalar(item)}" for key, item in value.items()) or "none"
    return str(value)
