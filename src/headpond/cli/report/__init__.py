"""The page that `headpond verify --html` writes: one file, no script, nothing loaded from elsewhere."""

from headpond.cli.report.page import VerifyReport, render

__all__ = ["VerifyReport", "render"]
