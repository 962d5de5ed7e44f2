"""Gangs of gangs, some of which may be left out, and groups that follow a leader."""

import pytest
from play import play

CASES = {
    "each gang in a rack of its own choice, or none at all": """
        cluster 2r x 2n x 4g
        queue A -/-/1
        0 run x A 1x4 on=n1
        0 submit J A 2x4+1x4 each=rack
        0 expect J running on=n3,n4,n2
        0 submit K A 2x4+2x4 each=rack
        0 expect K waits NoFreeDevices""",
    "both or none": """
        cluster 2r x 2n x 4g
        queue A -/-/1
        0 run x A 1x4 on=n1
        0 submit J A 2x4+2x4 each=rack
        0 expect J waits
        5 end x
        5 expect J running on=n1,n2,n3,n4""",
    "so many as must start are enough, and as many as fit do": """
        cluster 3r x 2n x 4g
        queue A -/-/1
        0 run x A 1x4 on=n1
        0 submit J A 2x4+2x4+2x4 each=rack least=2
        0 expect J running on=n3,n4,n5,n6""",
    "a limit leaves out what need not start": """
        cluster 3r x 2n x 4g
        queue A -/8/1
        0 submit J A 2x4+2x4+2x4 each=rack least=1
        0 expect J running on=n1,n2""",
    "room is made for the least, and for no more": """
        cluster 2r x 2n x 4g
        queue A 8/-/1
        queue B 8/-/1
        0 run b1 B 2x4 same=rack
        0 run b2 B 2x4 same=rack
        9 submit J A 2x4+2x4 each=rack least=1
        9 expect J running
        9 expect evicted 1""",
    "a leader stands in the rack of its group": """
        cluster 2r x 2n x 4g
        queue A -/-/1
        0 run x A 1x1 on=n1
        0 submit J A 2x4 same=rack lead=1x0
        0 expect J running
        0 submit K A 1x4 same=rack lead=1x1
        0 expect K running on=n1,n2""",
    "no room beside the leader is no room": """
        cluster 2r x 1n x 4g
        queue A -/-/1
        0 submit J A 1x4 same=rack lead=1x1
        0 expect J waits Topology
        0 submit K A 1x3 same=rack lead=1x1
        0 expect K running""",
    "a preferred level is given up, a leader or not": """
        cluster 2r x 1n x 4g
        queue A -/-/1
        0 submit J A 1x4 prefer=rack lead=1x1
        0 expect J running on=n1,n2""",
}


@pytest.mark.parametrize("name", CASES)
def test_subgroups(name: str):
    play(CASES[name])
