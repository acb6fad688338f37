"""The task that fails for good has become a dead letter."""

import time

import dramatiq
import dramatiq_app

queue = "default.XQ"
channel = dramatiq.get_broker().connection.channel()
end = time.monotonic() + 60
while (found := channel.basic_get(queue, auto_ack=True))[0] is None:
    assert time.monotonic() < end
    channel.connection.sleep(0.05)
assert b'"fails"' in found[2], found
assert found[1].headers["x-death"][0]["reason"] == "rejected", found[1].headers
assert dramatiq_app.fails.actor_name == "fails"
print("done")
