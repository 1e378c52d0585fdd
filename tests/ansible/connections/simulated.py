# SPDX-License-Identifier: GPL-2.0-only
"""The connection `local` by another name: ansible.builtin.reboot refuses to start the controller anew, and rightly."""

from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: simulated
short_description: for tests
description: Runs where the controller runs; starting that host anew is simulated.
author: The itree founders
extends_documentation_fragment: [connection_pipelining]
"""


class Connection(Local):
    """As local."""

    transport = "simulated"
