"""The table of sizes in docs/operations/deploy.md says what its own rules come to."""

from __future__ import annotations

import math
import re

from tests.support.commands import ROOT

PAGE = ROOT / "docs" / "operations" / "deploy.md"
TB, MIB = 10**12, 1 << 20
NETWORK_BYTES_PER_S = 3e9  # of a node, each way
SHARD_BYTES = 10 * 10**9
AT_ONCE = 16  # shards that get their names


def rows() -> list[list[float]]:
    text = PAGE.read_text("utf-8")
    table = text[text.index("| data | nodes |") : text.index("## Alerts")]
    cells = [
        [re.sub(r"[^0-9.]", "", cell) for cell in line.split("|")[1:-1]]
        for line in table.splitlines()
        if re.match(r"\| [0-9]", line)
    ]
    return [[float(cell) for cell in row] for row in cells]


def test_the_table_of_sizes_is_what_its_rules_come_to() -> None:
    found = rows()
    assert [row[0] for row in found] == [10, 100, 1000]
    for data_tb, nodes, scratch_tb, extract_min, create_min, commit_min, dollars in found:
        data = data_tb * TB
        share, shards = data / nodes, data / SHARD_BYTES
        assert scratch_tb == math.ceil(10.5 * share / TB) / 10
        assert extract_min == round(share / NETWORK_BYTES_PER_S / 60)
        sent = share * (nodes - 1) / nodes + share  # to other nodes, and to the store
        assert create_min == round(sent / NETWORK_BYTES_PER_S / 60)
        assert commit_min == max(round(shards / AT_ONCE * 0.2 / 60), 1)  # at 200 ms a shard
        parts = data / (16 * MIB) + 3 * shards
        assert dollars == round(data / (64 * MIB) * 0.4e-6 + parts * 5e-6)
