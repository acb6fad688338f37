"""`python -m gantrymq` is the `gantry` command."""

from __future__ import annotations

import sys

from gantrymq.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
