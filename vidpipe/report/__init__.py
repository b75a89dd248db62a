"""What is in a dataset: `status` for terminals and programs, `write_report` for people, `Snapshot` for notebooks."""

from vidpipe.report.page import write_report
from vidpipe.report.sheet import contact_sheet
from vidpipe.report.snapshot import Snapshot
from vidpipe.report.status import print_status, status

__all__ = ["Snapshot", "contact_sheet", "print_status", "status", "write_report"]
