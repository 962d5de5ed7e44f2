"""Guarantees by shape: so many whole nodes or racks, back at any time."""

import pytest
from play import play

CASES = {
    "others borrow whole nodes and give them back whole": """
        cluster 4n x 8g
        queue S -/-/1 shape=node:2
        queue B -/-/1
        0 submit b1 B 12x1
        0 submit b2 B 20x1
        0 expect b1,b2 running
        9 submit s S 2x8
        9 expect s running
        9 expect evicted 1""",
    "the cheapest set of whole nodes is taken back": """
        cluster 3n x 4g
        queue S -/-/1 shape=node:1
        queue B -/-/1
        0 run b1 B 1x4 on=n1
        0 run b2 B 1x3 on=n2
        0 run b3 B 1x1 on=n2
        0 run b4 B 1x2 on=n3
        0 run b5 B 1x1 on=n3
        9 submit s S 1x4
        9 expect s running on=n3
        9 expect evicted b4,b5""",
    "a job that may not be evicted leaves enough whole nodes": """
        cluster 3n x 4g
        queue S -/-/1 shape=node:2
        queue B 4/-/1
        0 run f1 B 1x1 firm on=n1
        0 run b1 B 1x3 on=n1        # n1 is full; n2 and n3 are what S may ask back
        0 submit f2 B 1x1 firm p5
        0 expect f2 running on=n1   # in place of b1, not on a whole node
        0 expect evicted b1""",
    "it waits, and says for which shape": """
        cluster 3n x 4g
        queue S -/-/1 shape=node:2
        queue B 4/-/1
        0 run f1 B 1x3 firm on=n1
        0 run c1 S 1x1 firm on=n1
        0 submit f2 B 1x1 firm
        0 expect f2 waits Shape
        0 says f2 "S is guaranteed 2 of the 3 whole nodes there are, and 1 is\"""",
    "a guarantee of devices does not spread over the whole nodes of another": """
        cluster 4n x 4g
        queue S -/-/1 shape=node:2
        queue B 8/-/1
        0 submit b1 B 1x2
        0 submit b2 B 1x2
        0 submit b3 B 1x2
        0 submit b4 B 1x2
        0 submit b5 B 1x2           # would break a third node for good, however the others end
        0 expect b1,b2,b3,b4 running
        0 expect b5 waits Shape
        9 submit s S 2x4
        9 expect s running
        9 expect evicted none""",
    "a queue with a guarantee borrows in whole nodes": """
        cluster 4n x 4g
        queue S -/-/1 shape=node:2
        queue B 8/-/1
        0 submit b1 B 1x4
        0 submit b2 B 1x4
        0 submit b3 B 1x4
        0 submit b4 B 1x4
        0 expect b1,b2,b3,b4 running
        9 submit s S 2x4
        9 expect s running
        9 expect evicted 2""",
    "whole racks": """
        cluster 3r x 2n x 4g
        queue S -/-/1 shape=rack:1
        queue B -/-/1
        0 submit b1 B 3x4
        0 submit b2 B 3x4
        0 expect b1,b2 running
        9 submit s S 2x4 same=rack
        9 expect s running
        9 expect evicted 1""",
    "a shape is given up on nodes that are lost, and the policy stays": """
        cluster 3n x 4g
        queue S -/-/1 shape=node:2
        queue B 4/-/1
        0 down n2
        0 down n3
        0 submit b1 B 1x1 firm
        0 expect b1 waits Shape
        5 up n2
        5 expect b1 waits Shape
        9 up n3
        9 expect b1 running""",
    "islands: half nodes with links of their own": """
        cluster 2n x 8g islands=2
        queue S -/-/1 shape=island:2
        queue B 8/-/1
        0 submit b1 B 1x4
        0 submit b2 B 1x4
        0 submit b3 B 1x4
        0 expect b1,b2,b3 running
        9 submit s S 2x4 same=node
        9 expect s running""",
    "without reclaim nobody else stands on them": """
        cluster 3n x 4g
        policy across=off
        queue S -/-/1 shape=node:2
        queue B -/-/1
        0 submit b1 B 1x4
        0 submit b2 B 1x1
        0 expect b1 running
        0 expect b2 waits Shape
        5 submit s S 2x4
        5 expect s running""",
    "what S has in small parts counts against its own nodes": """
        cluster 3n x 4g
        queue S -/-/1 shape=node:2
        queue T -/-/1 shape=node:1
        0 submit s1 S 1x2
        0 submit s2 S 1x3
        0 submit t T 1x4
        0 expect s1,s2,t running
        0 end s2
        1 submit s3 S 1x4
        1 expect s3 running
        1 expect evicted none""",
}


@pytest.mark.parametrize("name", CASES)
def test_shape(name: str):
    play(CASES[name])
