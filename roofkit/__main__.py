"""`python -m roofkit` is `roofkit`. Room: doors."""
import sys

from roofkit.cli import main

sys.exit(main())
