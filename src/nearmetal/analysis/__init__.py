"""Statistics on frames of measurements: pure functions, data frame in, data frame out.

See docs/statistics.md for what is computed and why.
"""

from nearmetal.analysis.cells import AnalysisError
from nearmetal.analysis.compare import compare, compare_stores, mergeable
from nearmetal.analysis.protocols import Protocol, protocol_named, protocols, register_protocol
from nearmetal.analysis.stopping import Decision, enough, half_width
from nearmetal.analysis.summary import outliers, precision, summarize

__all__ = [
    "AnalysisError", "Decision", "Protocol", "compare", "compare_stores", "enough", "half_width",
    "mergeable", "outliers", "precision", "protocol_named", "protocols", "register_protocol",
    "summarize",
]
