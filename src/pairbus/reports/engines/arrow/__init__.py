"""Bill, what-if and certificate in this process, with pyarrow: for logs that fit in memory. This package is an ``engines.base.Engine``."""

from pairbus.reports.engines.arrow.bill import price, recorded_usage
from pairbus.reports.engines.arrow.certificate import reconcile

__all__ = ["price", "reconcile", "recorded_usage"]
