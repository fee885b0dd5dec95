"""Clients and their requests take turns, whatever each of them has."""

from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.decoding.turns import Turns, Waiting


def _waiting(number, letter, due=None, patience=0.0):
    """A sentence of a request; those of lower case are one client's, and of capitals another's."""
    due = float(number) if due is None else due
    shares = letter.islower(), letter
    return Waiting(due=due, number=number, patience=patience, shares=shares)


def _turns(*given):
    """A queue with sentences of requests, each a letter, in the order of their arrival."""
    turns = Turns()
    for number, letter in enumerate("".join(given)):
        turns.add(_waiting(number, letter))
    return turns


def _order(turns, now):
    found = []
    while turns:
        found.append(turns.take(now))
        now += 1.0
    return "".join(one.shares[-1] for one in found), [one.number for one in found]


def test_a_short_request_comes_in_between_the_sentences_of_large_ones():
    order, numbers = _order(_turns("a" * 2000, "b" * 2000, "c"), 4001.0)
    assert order[:9] == "abcababab"
    for letter in "ab":  # each in the order in which it was sent
        own = [number for number, one in zip(numbers, order, strict=True) if one == letter]
        assert own == sorted(own)
        assert len(own) == 2000


def test_a_client_of_many_requests_does_not_come_before_others():
    many = "".join(map(chr, range(ord("a"), ord("a") + 26)))
    order, _ = _order(_turns(many * 3, "AAB"), 81.0)
    assert [place for place, letter in enumerate(order) if letter.isupper()] == [1, 3, 5]
    assert [one for one in order if one.islower()] == [*many * 3]  # its requests take turns too


def test_requests_of_one_sentence_keep_the_order_in_which_they_are_due():
    turns = Turns()
    for number, (arrived, patience) in enumerate([(0.0, 9.0), (1.0, 1.0), (2.0, 3.0), (8.0, 2.0)]):
        turns.add(_waiting(number, "abcd"[number], arrived + patience, patience))
    assert _order(turns, 0.0)[1] == [1, 2, 0, 3]


def test_what_is_put_back_comes_in_as_if_it_had_not_been_taken_out():
    turns = _turns("aaaabbbbc")
    taken = [turns.take(9.0 + number) for number in range(6)]
    assert len(turns) == 3
    for one in (taken[3], taken[5], taken[2], taken[1], taken[4]):
        turns.add(one, is_back=True)
    assert len(turns) == 8
    order, numbers = _order(turns, 15.0)
    assert order == "bcababab"  # as those of a, which had their turn, come in without that
    assert sorted(numbers) == [*range(1, 9)]


def test_what_is_left_out_leaves_no_place():
    turns = _turns("aaabbbccc")
    turns.leave_out(lambda one: one.shares[-1] == "b" or one.number == 0)
    assert len(turns) == 5
    order, numbers = _order(turns, 9.0)
    assert order == "acacc"
    assert numbers == [1, 6, 2, 7, 8]


@given(st.lists(st.tuples(st.sampled_from("abCD"), st.sampled_from(["add", "take", "back"]))))
def test_nothing_is_lost_or_comes_twice(steps):
    turns, taken, waiting = Turns(), [], set()
    for number, (letter, what) in enumerate(steps):
        now = float(number)
        if what == "add":
            turns.add(_waiting(number, letter))
            waiting.add(number)
        elif what == "take" and turns:
            taken.append(turns.take(now))
            waiting.remove(taken[-1].number)
        elif what == "back" and taken:
            turns.add(one := taken.pop(), is_back=True)
            waiting.add(one.number)
        assert len(turns) == len(waiting)
    assert sorted(_order(turns, float(len(steps)))[1]) == sorted(waiting)
