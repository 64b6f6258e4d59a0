"""What `test_cluster_delta` runs in a process of its own: headpond's command, with small batches spread.

Arguments: from how many bytes of decoded changes on a batch stays with the executors, then the command's.
"""

from __future__ import annotations

import sys

from headpond.cli.main import main
from headpond.spark.following import distributed as spread

if __name__ == "__main__":
    spread.DISTRIBUTE_ABOVE_BYTES = int(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
