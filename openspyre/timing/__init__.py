"""The timing model: how long a Program takes on a card, as a model. Reads Programs only.

Touches no data and no device; imports no torch. Constants: `table.py`. See docs/timing.md.
"""

from openspyre.timing.engine import duration_ns, time_program
from openspyre.timing.table import TABLE, TimingTable
from openspyre.timing.timeline import Server, Span, Timeline

__all__ = ["TABLE", "Server", "Span", "Timeline", "TimingTable", "duration_ns", "time_program"]
