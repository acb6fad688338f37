"""Calls nameko's services from outside."""

import os

from nameko.exceptions import RemoteError
from nameko.standalone.rpc import ClusterRpcProxy

with ClusterRpcProxy({"AMQP_URI": os.environ["AMQP_URL"]}, timeout=60) as cluster:
    assert cluster.sums.add(1, 2) == 3
    calls = [cluster.front.add_twice.call_async(number) for number in range(20)]
    assert [call.result() for call in calls] == [2 * number for number in range(20)]
    failed = None
    try:
        cluster.sums.fail()
    except RemoteError as error:
        failed = str(error)
    assert failed == "ValueError told to the caller", failed
print("done")
