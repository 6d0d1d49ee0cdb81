"""``python3 -m patches.audit``: the audit without the rest of the patches command line."""

import sys

from patches.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["audit", *sys.argv[1:]]))
