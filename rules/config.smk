# Read config/config.yaml, once it is known to be YAML with every key once: Snakemake itself keeps the last of two.
# Needs nothing.
# Leaves the configuration, and the project's modules within reach.

import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT))

from scripts.harness import config as configuration
from scripts.harness.errors import SweepError

if Path.cwd().resolve() != ROOT.resolve():
    raise WorkflowError(
        f"this run works in {Path.cwd()}, and the project lies in {ROOT}: results, locks and the server belong to the "
        "project's own folder; leave out --directory and start it there, or copy the whole project"
    )
try:
    configuration.check_readable(ROOT / "config/config.yaml")
except SweepError as error:
    raise WorkflowError(str(error)) from None


configfile: "config/config.yaml"
