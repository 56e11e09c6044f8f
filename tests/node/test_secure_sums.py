"""Secure aggregation without a run: Shamir's shares, fixed point, and the protocol between participants and a server,
with those who drop out at each of its steps."""

from itertools import combinations

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from scipy.stats import kstest

from sheafgossip.node import masked_sums
from sheafgossip.node.algorithms.secure import Participant, Sums
from sheafgossip.node.masked_sums import FixedPoint

U, T, LENGTH = (0, 2, 3, 5, 8), 3, 40


def rng(*key):
    return np.random.default_rng([7, *key])


# -- shares ------------------------------------------------------------------------------------------------------------


def test_any_t_shares_tell_the_secret():
    secret = masked_sums.draw_secret(rng())
    shares = dict(enumerate(masked_sums.shares_of(secret, 3, 5, rng(1)), 1))
    for places in combinations(shares, 3):
        found = masked_sums.recovered({x: shares[x] for x in places}, masked_sums.at_zero(places))
        assert found == secret


def test_t_minus_1_shares_fit_any_other_secret_just_as_well():
    """Two shares and whatever secret lie on one parabola: the third share that it gives is one that may have been."""
    shares = masked_sums.shares_of(masked_sums.draw_secret(rng()), 3, 5, rng(1))
    for other in (0, 1, masked_sums.PRIME - 1):
        weights = masked_sums.at_zero([1, 2, 3])
        third = (other - weights[1] * shares[0] - weights[2] * shares[1]) * pow(weights[3], -1, masked_sums.PRIME)
        assert third % masked_sums.PRIME != shares[2]
        assert masked_sums.recovered({1: shares[0], 2: shares[1], 3: third % masked_sums.PRIME}, weights) == other


def test_the_field_of_shares_is_a_field():
    p = masked_sums.PRIME
    assert p == 2**255 - 19
    assert all(pow(base, p - 1, p) == 1 for base in (2, 3, 5, 7))


def test_two_agree_on_a_key_and_what_one_seals_nobody_else_opens():
    a, b, c = (masked_sums.private_key(masked_sums.draw_secret(rng(n))) for n in range(3))
    key = masked_sums.agreed_key(a, masked_sums.public_key(b), b"shares")
    assert key == masked_sums.agreed_key(b, masked_sums.public_key(a), b"shares")
    assert key != masked_sums.agreed_key(a, masked_sums.public_key(b), b"mask")
    sealed = masked_sums.seal(key, 3, b"told")
    assert masked_sums.unseal(key, 3, sealed) == b"told"
    for other, sender in ((masked_sums.agreed_key(c, masked_sums.public_key(b), b"shares"), 3), (key, 4)):
        with pytest.raises(InvalidTag):
            masked_sums.unseal(other, sender, sealed)


def test_a_mask_is_the_stream_of_chacha20():
    """Its first words with key and nonce 0, from RFC 7539, appendix A.1."""
    first = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert masked_sums.mask(bytes(32), 8, 32).tobytes() == first
    assert masked_sums.mask(bytes(32), 4, 64).tobytes() == first


# -- fixed point -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (10, 500, 3, 77)])
def test_a_mean_in_fixed_point_is_as_exact_as_said(bits, weights):
    numbers = FixedPoint(bits, 4.0, len(weights), sum(weights))
    vectors = rng(bits).uniform(-4, 4, (len(weights), 2000))
    total = sum(numbers.encode(x, n) for x, n in zip(vectors, weights, strict=True))
    exact = np.average(vectors, axis=0, weights=weights)
    bound = len(weights) * 4.0 / 2**bits * 1.001  # clients * range / 2^k
    bound = max(bound, 1e-15)  # of 64 bits, double precision has 53
    worst = np.abs(numbers.mean(total, weights) - exact).max()
    assert worst <= bound
    assert bits == 64 or worst > bound / 20


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sum_that_can_be_does_not_overflow(bits, sign):
    weights = [3, 1000, 17]
    numbers = FixedPoint(bits, 0.5, 3, sum(weights))
    beyond = np.array([sign * 7.0])  # cut to the range
    total = sum(numbers.encode(beyond, n) for n in weights)
    assert numbers.mean(total, weights) == pytest.approx(sign * 0.5, rel=1e-6)


# -- the protocol ------------------------------------------------------------------------------------------------------


def played(x, lost=(), at=2):
    """Of ``lost``, no message comes in exchange ``at`` and later. Returns what the server holds and what it got."""
    people = {u: Participant(u, U, T, rng(u, 1)) for u in U}
    server, answers, got = Sums(U), dict.fromkeys(U), []
    for exchange, step in enumerate((server.keys, server.passed_on, server.came, server.revealed)):
        sent = {}
        for u in answers:
            if u in lost and exchange >= at:
                continue
            own = people[u]
            says = (own.keys, own.shares, lambda sealed, own=own, u=u: own.masked(x[u], sealed), own.reveal)[exchange]
            sent[u] = says(answers[u])
        got.append(sent)
        answers = step(sent)
    return server, got


def vectors(bits=32, high=1000):
    return {u: rng(u).integers(0, high, LENGTH).astype(f"<u{bits // 8}") for u in U}


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(
    ("lost", "at"), [((), 0), ((3,), 0), ((0,), 1), ((3,), 2), ((0, 8), 2), ((2, 5), 3), ((8,), 1), ((0,), 3)]
)
def test_the_sum_of_those_whose_vectors_came_is_exact_whoever_drops_out(bits, lost, at):
    x = vectors(bits)
    server, _ = played(x, lost, at)
    there = [u for u in U if at > 2 or u not in lost]
    assert list(server.y) == there
    assert np.array_equal(server.total(), sum(x[u] for u in there))


def test_what_a_client_uploads_is_uniform_whatever_its_vector():
    """Kolmogorov and Smirnov find neither a vector of zeros nor one of ones."""
    for high in (1, 2):
        people = {u: np.full(20_000, high - 1, "<u4") for u in U}
        _, got = played(people)
        for y in got[2].values():
            assert kstest(y.view("<u4") / 2**32, "uniform").pvalue > 1e-3


def test_two_vectors_of_one_client_with_the_same_masks_differ_by_their_difference_alone_and_masks_serve_once():
    """So a mask that served twice would tell the difference of two rounds; keys of another round are others."""
    x, other = vectors(), vectors()
    other[3] = other[3] + np.uint32(5)
    (one, got), (_, again) = played(x), played(other)
    assert np.array_equal(again[2][3] - got[2][3], np.full(LENGTH, 5))
    assert all(np.array_equal(again[2][u], got[2][u]) for u in U if u != 3)
    rounds = [Participant(3, U, T, rng(3, round)).keys(None) for round in (1, 2)]
    assert not np.array_equal(*rounds)
    assert one.total().tolist() == sum(x.values()).tolist()


def test_of_nobody_both_secrets_are_told():
    """Of who is there the share of b, of who is gone that of s, of who never was there none."""
    people = {u: Participant(u, U, T, rng(u, 1)) for u in U}
    _, got = played(vectors(), (5,), 2)
    _, (_, *_, told) = played(vectors(), (5,), 2)
    assert set(told) == {0, 2, 3, 8}
    assert got[3].keys() == told.keys()
    at = {v: slice(32 * n, 32 * (n + 1)) for n, v in enumerate(U)}
    for v in U:
        of_v = {1 + U.index(u): int.from_bytes(told[u][at[v]].tobytes(), "little") for u in told}
        secret = masked_sums.recovered(of_v, masked_sums.at_zero(of_v))
        assert secret == (people[v]._s if v == 5 else people[v]._b)
    _, (*_, told) = played(vectors(), (5,), 0)
    assert not any(shares[at[5]].any() for shares in told.values())


def test_with_fewer_than_t_shares_the_server_does_not_find_the_sum():
    x = vectors()
    server, got = played(x)
    few = {u: got[3][u] for u in (0, 2)}
    server.revealed(few)
    assert not np.array_equal(server.total(), sum(x.values()))
