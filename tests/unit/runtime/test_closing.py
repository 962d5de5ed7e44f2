"""Which cordons close a node for everybody."""

from __future__ import annotations

from tercio.core.cluster import Cluster
from tercio.model.events import NodeCordoned, NodeReported, NodeUncordoned
from tercio.model.ids import NodeName, SiteName
from tercio.model.node import Cordon, NodeSpec
from tercio.runtime.closing import wanted_closed


def cluster_of(**closed: str) -> Cluster:
    cluster = Cluster()
    for name in ("n1", "n2", "n3", "n4", "other"):
        site = SiteName("elsewhere" if name == "other" else "hpc")
        spec = NodeSpec(name=NodeName(name), site=site, closed=closed.get(name, ""))
        cluster.apply(NodeReported(at_s=1.0, spec=spec))
    return cluster


def cordon(cluster: Cluster, name: str, owner: str, reason: str) -> None:
    made = Cordon(owner=owner, reason=reason, since_s=2.0)
    cluster.apply(NodeCordoned(at_s=2.0, node=NodeName(name), cordon=made))


def test_people_and_health_close_a_node_but_the_engine_and_spares_do_not() -> None:
    cluster = cluster_of(n3="bad fan")
    cordon(cluster, "n1", "health", "fell off the bus")
    cordon(cluster, "n1", "user:ana", "")
    cordon(cluster, "n2", "spare", "kept ready")
    cordon(cluster, "other", "user:ana", "not of this site")
    assert wanted_closed(cluster, "hpc") == {"n1": "fell off the bus, health; cordoned, user:ana"}
    cluster.apply(NodeUncordoned(at_s=3.0, node=NodeName("n1"), owner="health"))
    assert wanted_closed(cluster, "hpc") == {"n1": "cordoned, user:ana"}
    cluster.apply(NodeUncordoned(at_s=3.0, node=NodeName("n1"), owner="user:ana"))
    assert wanted_closed(cluster, "hpc") == {}
