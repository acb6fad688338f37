"""Publishers and a sink of a simulation: random answers, time, and a broker that fails or goes away.

Whatever happened, every event acknowledged with 202 was answered 2xx or lies in the dead letters, each key in order, and no
key ever had two events in flight.
"""

from gantrymq.model.errors import ErrorCode
from gateways.tests.cloudevents.rig import Rig

KEYS = 4
STATUSES = [200, 200, 204, 500, 503, 429, 404, 400, 0]
CALLS = ["submit", "acquire", "open_cursor", "take_lease", "ensure_topic", "topics", "read"]


class EventActor:
    def __init__(self, simulation, broker_fails=True):
        self.simulation = simulation
        self.random = simulation.random
        self.lives = 0
        self.rig = Rig(simulation.port)
        self.name = self.rig.subscribe(config={"maxattempts": 3})
        self.acknowledged = []
        self.done = []
        self.number = 0
        self.actions = [self.post] * 8 + [self.answer] * 8 + [self.pass_time] * 4
        self.actions += [self.lose_broker, self.trouble] if broker_fails else []

    def post(self):
        identity = f"{self.number % KEYS}-{self.number:04}"
        self.number += 1
        if self.rig.post(identity=identity, data=identity.encode(), ce_partitionkey=f"k{identity[0]}")[0] == 202:
            self.acknowledged.append(identity)
            self.simulation.published("t/a/b", identity.encode())

    def published(self, topic, payload):
        """Its subscription has a topic of its own."""

    def check(self):
        self.rig.run()
        keys = [sent.id[0] for sent in self.rig.sender.open]
        assert len(keys) == len(set(keys))
        assert self.rig.host.in_flight == len(keys)

    def answer(self):
        if self.rig.sender.open:
            sent = self.random.choice(self.rig.sender.open)
            status = self.random.choice(STATUSES)
            if 200 <= status < 300:
                self.done.append(sent.id)
            sent.answer(status, self.random.choice([None, b"1", b"nonsense"]))
            self.rig.run()

    def pass_time(self):
        self.rig.advance(self.random.choice([10, 200, 3000, 12_000]))

    def restart(self):
        self.lives += 1
        self.rig = Rig(self.simulation.port, seed=self.lives)

    def lose_broker(self):
        self.rig.port.lose()
        self.rig.run()
        assert self.rig.host.in_flight == 0
        self.post()
        self.rig.port.return_()
        self.rig.run()

    def trouble(self):
        self.rig.port.fail_next(self.random.choice(CALLS), self.random.choice([ErrorCode.BUSY, ErrorCode.STORE_FULL]))

    def heal(self):
        self.rig.port.failures.clear()
        for _ in range(400):
            while self.rig.sender.open:
                sent = self.rig.sender.open[0]
                self.done.append(sent.id)
                sent.answer(200)
                self.check()
            if self.settled():
                break
            self.rig.advance(1000)
        missing = set(self.acknowledged) - set(self.done) - self.dead()
        assert not missing
        assert self.settled()
        for key in range(KEYS):
            first = list(dict.fromkeys([identity for identity in self.done if identity[0] == str(key)]))
            assert first == sorted(first)

    def dead(self):
        return {message.property("CE_id") for message in self.rig.dead(self.name)}

    def settled(self):
        own = [cursor for cursor in self.rig.port.cursors.values() if cursor.group == f"ce:{self.name}"]
        return set(self.acknowledged) <= {*self.done, *self.dead()} and not any(c.leased or c.returned for c in own)
