"""Pages that `verify` and `status` write with --html: one file each, no script, nothing from elsewhere."""

from headpond.cli.report.page import VerifyReport, render
from headpond.cli.report.status_page import render_status

__all__ = ["VerifyReport", "render", "render_status"]
