"""``python -m zipbrain`` is the command line."""

from zipbrain.cli import main

raise SystemExit(main())
