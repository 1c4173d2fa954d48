"""Times and sizes as people write them, for study files and environment paths."""

from __future__ import annotations

import re
from typing import Any

_MEBIBYTES = {"": 1, "M": 1, "MIB": 1, "MB": 1, "G": 1024, "GIB": 1024, "GB": 1024}


def seconds(value: Any) -> Any:
    """Seconds from text such as "90s", "5m", "1h"; what is not text is left as it is."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h)\s*", value)
        if not match:
            raise ValueError('write a time as a number of seconds or as "90s", "5m", "1h"')
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
    return value


def mebibytes(value: Any) -> Any:
    """MiB from text such as "512", "512M", "2G"; what is not text is left as it is."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if not match or match[2].upper() not in _MEBIBYTES:
            raise ValueError('write memory as a number of MiB or as "512M", "2G"')
        return int(float(match[1]) * _MEBIBYTES[match[2].upper()])
    return value
