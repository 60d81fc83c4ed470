"""The largest matching of a bipartite graph, by augmenting paths (Kuhn)."""

from __future__ import annotations

from collections.abc import Sequence


def largest_matching_size(edges: Sequence[Sequence[int]]) -> int:
    """Return how many of the left can have one of the right each; ``edges`` are those they may."""
    owner: dict[int, int] = {}
    size = 0
    for start in range(len(edges)):
        # The left ones that are to find another partner, and where in their edges each is.
        path, positions, seen = [start], [0], set[int]()
        while path:
            left, position = path[-1], positions[-1]
            if position == len(edges[left]):
                path.pop()
                positions.pop()
                continue
            positions[-1] += 1
            right = edges[left][position]
            if right in seen:
                continue
            seen.add(right)
            if right in owner:
                path.append(owner[right])
                positions.append(0)
                continue
            for one, at in zip(path, positions, strict=True):
                owner[edges[one][at - 1]] = one
            size += 1
            break
    return size
