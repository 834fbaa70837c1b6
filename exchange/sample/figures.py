"""What the sample's traces hold, by the reader of this project; other traces may follow."""

import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
from exchange import chakra

TYPES = chakra.ENUMS["NodeType"].split()
given = [Path(word) for word in sys.argv[1:]]
for path in given or sorted(Path(__file__).parent.glob("*.et.gz")):
    metadata, found = chakra.read(path)
    nodes = list(found)
    values = [chakra.attributes_of(node) for node in nodes]
    print(path.name, metadata.version, chakra.attributes_of(metadata)["schema_commit"][:8])
    print("  nodes:", dict(Counter(TYPES[node.type] for node in nodes)))
    print("  calls and requests:", dict(Counter(n.name for n in nodes if n.HasField("storage"))))
    print(f"  bytes moved: {sum(map(chakra.moved_bytes, nodes)):,}")
    print(f"  operations: {sum(v.get('num_ops', 0) for v in values):,}")
    print(f"  bytes reduced over all ranks: {sum(v.get('comm_size', 0) for v in values):,}")
    print("  violations:", list(chakra.violations(nodes)) or "none")
