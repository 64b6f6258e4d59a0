"""Pages that commands write with --html: one file each, no script, nothing from elsewhere."""

from headpond.cli.report.status_page import render_status
from headpond.cli.report.verify_page import VerifyReport, render

__all__ = ["VerifyReport", "render", "render_status"]
