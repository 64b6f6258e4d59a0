"""`python -m tests.kills`; a module of its own, so that forked processes do not import it again."""

import sys

from tests.kills.kills import main

sys.exit(main())
