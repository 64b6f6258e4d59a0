"""`python -m headpond` is the command `headpond`."""

from __future__ import annotations

import sys

from headpond.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
