"""Who is told that bins are durable."""

from evkf.live.receipts import Receipts


def test_who_took_over_is_told_of_what_another_had_sent():
    receipts = Receipts(due=0)
    for seq in range(3):
        receipts.expect(position=seq, seq=seq, peer="old")
    # The disk refuses; the sender comes back over a new connection, and sends again.
    receipts.repeat("new")
    assert receipts.take(settled=0) is None
    assert receipts.take(settled=3) == ("new", 2)
    assert receipts.take(settled=3) is None


def test_a_bin_that_was_lost_owes_nobody_an_answer():
    receipts = Receipts(due=5)
    receipts.expect(position=0, seq=5, peer=None)
    assert receipts.take(settled=1) is None
    assert receipts.last == 5
    receipts.expect(position=1, seq=6, peer="rig")
    receipts.expect(position=2, seq=7, peer=None)
    assert receipts.take(settled=3) == ("rig", 7)


def test_a_sender_that_began_anew_is_told_nothing_of_before():
    receipts = Receipts(due=0)
    receipts.expect(position=0, seq=0, peer="rig")
    receipts.forget()
    receipts.repeat("rig")
    assert receipts.take(settled=1) is None
