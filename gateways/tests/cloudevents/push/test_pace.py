from gantrymq_gateways.cloudevents.push.pace import Pace


def test_refusals_of_one_burst_halve_once():
    pace = Pace(16)
    for _ in range(16):
        pace.refused(0)
    assert (pace.limit, pace.cuts, pace.refusals) == (8, 1, 1)
    pace.refused(1)
    assert (pace.limit, pace.refusals) == (4, 2)


def test_it_stays_between_one_and_the_most():
    pace = Pace(4)
    for cuts in range(5):
        pace.refused(cuts)
    assert pace.limit == 1
    limits = []
    for _ in range(5):
        pace.answered(True)
        limits.append(pace.limit)
    assert limits == [2, 3, 4, 4, 4]
    assert pace.refusals == 0


def test_one_request_first_after_a_pause():
    pace = Pace(16)
    pace.refused(0)
    pace.pause_ended()
    assert pace.limit == 1
    pace.refused(1)
    assert pace.limit == 1
    pace.answered(False)
    assert (pace.limit, pace.refusals) == (4, 2)
