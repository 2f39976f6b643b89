"""The command line, `finaz`.

What must stay true: human tables by default, `--json` for machines, exit status 0 only on success.
"""

import click


@click.group(name="finaz")
@click.version_option(package_name="finaz-runtime", prog_name="finaz")
def main() -> None:
    """The runtime of a market-data engine: runs, leases, results."""
