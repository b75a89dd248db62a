"""The endless sequence: rates, epochs, exact visits, cuts by tokens."""

import itertools
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.sequence import EPOCH, MixSequence, StreamSequence
from trainer.data.synthetic import StreamIndex


def stream_of(rows, weight=1.0, tokens=10):
    return StreamIndex.of({tokens: rows}, {tokens: weight}).streams[0]


@given(
    rows=st.integers(1, 200),
    group=st.integers(1, 30),
    weight=st.sampled_from([0.01, 0.3, 1.0, 1.5, 2.0, 3.7]),
    key=st.integers(0, 1000),
    epoch=st.integers(0, 50),
)
@settings(max_examples=80, deadline=None)
def test_an_epoch_visits_each_group_as_often_as_the_weight_says(rows, group, weight, key, epoch):
    sequence = StreamSequence(stream_of(rows, weight), group, key)
    start, stop = sequence.groups_before(epoch * EPOCH), sequence.groups_before((epoch + 1) * EPOCH)
    assert abs(stop - start - weight * sequence.num_groups) < 1.001
    visits = sequence.between(start, stop)
    counts = Counter(visits.rows.tolist())
    seen = [counts[row] for row in range(rows)]
    assert min(seen) >= int(weight) - (weight % 1 != 0 and weight < 1) and max(seen) <= -(-weight // 1)
    assert len(set(zip(visits.rows.tolist(), visits.visits.tolist()))) == len(visits.rows)


@given(cuts=st.lists(st.integers(0, 1000), min_size=2, max_size=6), group=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_pieces_join_to_the_whole(cuts, group):
    sequence = StreamSequence(stream_of(77, 1.5), group, 5)
    cuts = sorted(cuts)
    whole = sequence.between(cuts[0], cuts[-1])
    parts = [sequence.between(a, b) for a, b in itertools.pairwise(cuts)]
    for name in ("rows", "visits", "groups"):
        assert np.array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(whole, name))


def test_groups_differ_by_at_most_one_row_and_cover_the_stream():
    sequence = StreamSequence(stream_of(103), 10, 0)
    visits = sequence.between(0, sequence.num_groups)
    sizes = Counter(visits.groups.tolist()).values()
    assert sequence.num_groups == 11 and set(sizes) == {9, 10}
    assert sorted(visits.rows.tolist()) == list(range(103))


def test_cuts_by_tokens_are_exact_to_one_group():
    index = StreamIndex.of({10: 1000, 35: 200, 400: 7})
    mix = MixSequence([StreamSequence(s, 1, i) for i, s in enumerate(index.streams)])
    times = [mix.time_of(tokens, 0, 4 * EPOCH) for tokens in range(0, 60_000, 997)]
    for tokens, time in zip(range(0, 60_000, 997), times):
        assert mix.tokens_before(time) <= tokens < mix.tokens_before(time + 1)
        assert tokens - mix.tokens_before(time) <= 400


def test_any_stretch_holds_the_mix():
    index = StreamIndex.of({10: 1000, 35: 200, 400: 7})
    mix = MixSequence([StreamSequence(s, 1, i) for i, s in enumerate(index.streams)])
    for tenth in range(10):
        found = mix.between(tenth * EPOCH // 10, (tenth + 1) * EPOCH // 10)
        assert [len(v.rows) for v in found][:2] == [100, 20]
        assert len(found[2].rows) in (0, 1)
