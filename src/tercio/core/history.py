"""What changed from one version of the policy to the next, in the words of the policy file."""

from __future__ import annotations

from typing import Final

import msgspec

from tercio.model.queue import Policy, walk_queues

_WORDS: Final = {
    "half_life_s": "half_life",
    "max_overtake_s": "max_overtake",
    "fence_after_s": "fence_after",
}


def changed(before: Policy, after: Policy) -> tuple[str, ...]:
    """Return the keys that differ, a queue by its path: `+` for a new one, `-` for one gone.

    >>> from tercio.model.queue import QueueSpec
    >>> changed(Policy(), Policy(half_life_s=0.0, queues={"default": QueueSpec(weight=2)}))
    ('half_life', 'default.weight')
    """
    found = [
        _WORDS.get(name, name)
        for name in Policy.__struct_fields__
        if name != "queues" and getattr(before, name) != getattr(after, name)
    ]
    old, new = walk_queues(before), walk_queues(after)
    for path in dict.fromkeys((*old, *new)):
        if path not in old:
            found.append(f"+{path}")
        elif path not in new:
            found.append(f"-{path}")
        else:
            fields = msgspec.structs.fields(type(new[path]))
            found += [
                f"{path}.{field.name}"
                for field in fields
                if field.name != "children"
                and getattr(old[path], field.name) != getattr(new[path], field.name)
            ]
    return tuple(found)
