"""What is in a dataset: `status` for the terminal and for programs, `write_report` for people."""

from vidpipe.report.page import write_report
from vidpipe.report.status import print_status, status

__all__ = ["print_status", "status", "write_report"]
