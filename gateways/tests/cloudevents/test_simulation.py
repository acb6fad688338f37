"""Publishing and delivering under a seed: random answers, time, crashes and a broker that goes away; then everything heals.

Whatever happened, every event acknowledged with 202 was answered 2xx or lies in the dead letters, each key in order, and no
key ever had two events in flight.
"""

import random

import pytest

from gantrymq.model.errors import ErrorCode
from tests.cloudevents.rig import Rig

KEYS = 4
STATUSES = [200, 200, 204, 500, 503, 429, 404, 400, 0]


class World:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lives = 0
        self.rig = Rig(mode=self.random.choice(["immediate", "late", "shuffled"]), seed=seed)
        self.name = self.rig.subscribe(config={"maxattempts": 3})
        self.acknowledged = []
        self.done = []
        self.number = 0

    def post(self):
        identity = f"{self.number % KEYS}-{self.number:04}"
        self.number += 1
        if self.rig.post(identity=identity, ce_partitionkey=f"k{identity[0]}")[0] == 202:
            self.acknowledged.append(identity)

    def check(self):
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

    def crash(self):
        self.lives += 1
        self.rig = Rig(self.rig.port.crash(seed=self.lives), seed=self.lives)

    def lose_broker(self):
        self.rig.port.lose()
        self.rig.run()
        assert self.rig.host.in_flight == 0
        self.post()
        self.rig.port.return_()
        self.rig.run()

    def trouble(self):
        call = self.random.choice(["submit", "acquire", "open_cursor", "take_lease", "ensure_topic", "topics", "read"])
        self.rig.port.fail_next(call, self.random.choice([ErrorCode.BUSY, ErrorCode.STORE_FULL]))

    def heal(self):
        self.rig.port.failures.clear()
        for _ in range(400):
            while self.rig.sender.open:
                sent = self.rig.sender.open[0]
                self.done.append(sent.id)
                sent.answer(200)
                self.rig.run()
                self.check()
            if self.settled():
                return
            self.rig.advance(1000)

    def settled(self):
        dead = {message.property("CE_id") for message in self.rig.dead(self.name)}
        return set(self.acknowledged) <= {*self.done, *dead} and not any(
            cursor.leased or cursor.returned for cursor in self.rig.port.cursors.values()
        )


@pytest.mark.parametrize("seed", range(25))
def test_nothing_acknowledged_is_lost(seed):
    world = World(seed)
    actions = [world.post] * 8 + [world.answer] * 8 + [world.pass_time] * 4
    actions += [world.crash, world.lose_broker, world.trouble]
    for _ in range(120):
        world.random.choice(actions)()
        world.check()
    world.heal()
    dead = {message.property("CE_id") for message in world.rig.dead(world.name)}
    missing = set(world.acknowledged) - set(world.done) - dead
    assert not missing
    assert world.settled()
    for key in range(KEYS):
        first = list(dict.fromkeys([identity for identity in world.done if identity[0] == str(key)]))
        assert first == sorted(first)
