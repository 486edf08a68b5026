"""The page's process, as `zipbrain.live.page.start` starts it."""

import sys

from zipbrain.live.page.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
