"""Processes of a run are killed and frozen at random moments: the result is equal, in order, and nothing is left."""

from __future__ import annotations

import redis

from pipeline.store import keys
from tests.e2e.chaos import Sequence, Site, a_chance, moments, wait_until


def test_kills_of_workers_leader_and_feeder_at_random_moments_change_nothing(site: Site) -> None:
    chance, sequence = a_chance(), Sequence(count=8_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2")

    for moment in moments(chance, sequence.taken, 5):
        run.wait_for_taken(moment)
        run.kill_one_of(chance, "w0", "w1", "leader", "source")
    run.finish()

    sequence.check(run.folder / "out")
    assert "the books balance: " in run.said()
    site.assert_clean("flow.py", "out")


def test_a_killed_agent_and_its_children_are_replaced(site: Site) -> None:
    chance, sequence = a_chance(), Sequence(count=8_000)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2")

    # A worker that has died before has a higher number than the first one of the next agent.
    for moment, victim in zip(moments(chance, sequence.taken, 3), ("w0", "w0", "node"), strict=True):
        run.wait_for_taken(moment)
        run.kill(victim)
    run.finish()

    assert "the node process died and was started again" in run.said()
    assert "a newer incarnation" not in run.log("w0")
    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")


def test_a_frozen_owner_is_refused_when_it_thaws_and_goes_on_without_its_partitions(site: Site) -> None:
    chance = a_chance()
    sequence = Sequence(count=8_000, slow=chance.randrange(100, 4_000))
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2")
    hand = run.folder / "hand"
    wait_until(lambda: hand.exists() and hand.read_text() != "", "a worker has the slow record in hand")
    frozen, other = ("w0", "w1") if run.child("w0").pid == int(hand.read_text()) else ("w1", "w0")

    with run.stopped(frozen) as process:
        wait_until(lambda: run.owners() == {other}, f"{other} has taken over")
    wait_until(lambda: "fenced: another worker has taken over" in run.log(frozen), f"{frozen} says that it is fenced")
    assert run.child(frozen).pid == process.pid
    with run.stopped(other):
        wait_until(lambda: run.owners() <= {frozen}, f"{frozen} has taken over")
        run.wait_for_taken(run.taken() + 1)
    run.finish()

    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out", "hand")


def test_of_two_leaders_one_acts_and_the_other_takes_over_when_it_is_frozen_or_killed(site: Site) -> None:
    chance, sequence = a_chance(), Sequence(count=8_000, work=200)
    site.write(sequence.text)
    run = site.start("flow.py", "--workers", "2")
    first_moment, second_moment = moments(chance, sequence.taken, 2, (0.02, 0.5))

    run.wait_for_taken(first_moment)
    first = run.facts().leader
    second = site.start_leader(run.address, "second")
    with run.stopped("leader"):
        wait_until(lambda: run.facts().leader == "second", "the second leader leads")
        run.kill("w0")
    wait_until(
        lambda: f"lease lost, another leader acts: job={run.link[1]}" in run.log("leader"), "the first one says so"
    )
    run.wait_for_taken(second_moment)
    assert run.facts().leader == "second"
    second.kill()
    second.wait()
    wait_until(lambda: run.facts().leader == first, "the first leader leads again")
    run.kill("w1")
    run.finish()

    sequence.check(run.folder / "out")
    site.assert_clean("flow.py", "out")


def test_a_record_that_is_doubled_by_hand_is_told_within_seconds_and_at_the_end(site: Site) -> None:
    chance, sequence = a_chance(), Sequence(count=4_000)
    # The second half waits for the alarm: a fast machine has done all before the books are compared.
    held = "def worked(pair):\n    while pair[1] > 2_000 and not Path('go').exists():\n        time.sleep(0.01)\n"
    site.write(sequence.text.replace("def worked(pair):\n", held))
    run = site.start("flow.py", "--workers", "2")
    run.wait_for_taken(moments(chance, sequence.taken, 1, (0.02, 0.2))[0])
    store, job = run.link

    with redis.Redis.from_url(run.address) as client:
        client.hincrby(keys.log(job, 2, 1), "1.0", 1)
    said = (
        "BOOKS DO NOT BALANCE: stage 'by_key' partition 1 has 1 record more from stage 'hop' partition 0 than that sent"
    )
    wait_until(lambda: said in run.said(), "the run says so", 10.0)
    alarms = {alarm.text for alarm in store.facts(job).alarms}
    (run.folder / "go").touch()
    run.finish(code=5)

    assert said.partition(": ")[2] in alarms
    assert run.said().count(said) == 2
    assert "the books do not balance: job=" in run.log("leader")
