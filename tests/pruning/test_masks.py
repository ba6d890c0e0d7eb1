# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import flashsparse_plugin as fs
from flashsparse_plugin.pruning import prune_weight
from flashsparse_plugin.pruning.masks import (
    apply_mask_,
    keep_mask,
    kth_lowest,
    lowest_of_row,
    zero_count,
)
from flashsparse_plugin.pruning.nm import nm_keep_mask
from flashsparse_plugin.pruning.rule import share_kept

# Few different values make many ties; infinity is a legal score.
values = st.sampled_from([0.0, 1e-45, 0.5, 1.0, 1.0000001, 3e38, math.inf]) | st.floats(
    0, width=32, allow_nan=False
)


# They add up without rounding, in whatever order.
exact_values = st.integers(0, 20).map(lambda i: i / 4)


@st.composite
def score_matrices(draw, side=12, values=values):
    rows, columns = draw(st.integers(1, side)), draw(st.integers(1, side))
    flat = draw(st.lists(values, min_size=rows * columns, max_size=rows * columns))
    return torch.tensor(flat, dtype=torch.float32).view(rows, columns)


def expected_drops(scores, count):
    """The places a list is pruned at: lowest first, of equals the earliest."""
    order = sorted(range(len(scores)), key=lambda i: (scores[i], i))
    return set(order[:count])


def drops(keep):
    return set((~keep).nonzero().flatten().tolist())


@given(score_matrices(8), st.floats(0, 1))
def test_layer_scope_drops_exactly_the_lowest(scores, sparsity):
    keep = keep_mask(scores, sparsity, "layer")
    count = round(sparsity * scores.numel())
    assert drops(keep.flatten()) == expected_drops(scores.flatten().tolist(), count)


@given(score_matrices(8), st.floats(0, 1))
def test_row_scope_drops_exactly_the_lowest_of_each_row(scores, sparsity):
    keep = keep_mask(scores, sparsity, "row")
    count = round(sparsity * scores.shape[1])
    for row, kept in zip(scores.tolist(), keep, strict=True):
        assert drops(kept) == expected_drops(row, count)


@given(score_matrices(), st.integers(1, 12), st.integers(0, 11))
def test_nm_keeps_the_best_of_each_window(scores, m, less):
    check_windows(scores, max(1, m - less), m, 1)


@given(
    score_matrices(values=exact_values), st.integers(1, 12), st.integers(0, 11), st.integers(2, 5)
)
def test_nm_keeps_the_best_vectors_of_each_window(scores, m, less, length):
    check_windows(scores, max(1, m - less), m, length)


def check_windows(scores, n, m, length):
    keep = nm_keep_mask(scores, n, m, length)
    assert keep.shape == scores.shape
    for top in range(0, scores.shape[0], length):
        group, kept = scores[top : top + length], keep[top : top + length]
        assert (kept == kept[0]).all()  # the choice is shared
        vectors = group[0] if length == 1 else group.double().sum(0)
        for left in range(0, scores.shape[1], m):
            window = vectors[left : left + m].tolist()
            count = max(0, len(window) - n)
            assert drops(kept[0, left : left + m]) == expected_drops(window, count)


def test_vectors_of_extreme_scores_keep_their_order():
    for least, more in ((0.0, 1e-45), (1e38, 2e38)):
        scores = torch.tensor([[more, least], [more, least]])
        assert nm_keep_mask(scores, 1, 2, vector_length=2).int().tolist() == [[1, 0]] * 2


def share(scores, n, m, length=1):
    return share_kept(scores, nm_keep_mask(scores, n, m, length))


@given(score_matrices(24, exact_values), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]))
def test_what_a_larger_window_or_a_shorter_vector_keeps_is_not_less(scores, n, length):
    own = share(scores, n, 4, length)
    assert share(scores, 2 * n, 8, length) >= own  # two windows' choice is one of the larger's
    assert share(scores, n, 4, 2 * length) <= own
    keep = nm_keep_mask(scores, n, 4, length)
    free = keep_mask(scores, 1 - int(keep.sum()) / keep.numel(), "layer")
    assert int(free.sum()) == int(keep.sum())
    assert own <= share_kept(scores, free) <= 1


def test_shares_of_extreme_scores():
    assert share_kept(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.bool)) == 1
    scores = torch.tensor([[math.inf, math.inf, 1.0, 0.0]])
    assert share_kept(scores, torch.tensor([[True, False, False, True]])) == 0.5


@given(
    st.integers(1, 20), st.integers(1, 40), st.integers(1, 12), st.integers(0, 11),
    st.sampled_from([1, 2, 4, 8, 128]), st.integers(0, 100),
)  # fmt: skip
def test_what_is_pruned_to_a_pattern_packs_to_it(rows, columns, m, less, length, seed):
    n = max(1, m - less)
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).bfloat16()
    pruned = prune_weight(weight, pattern=(n, m), vector_length=length)
    packed = fs.pack(pruned, "nm_vector", n=n, m=m, vector_length=length)
    assert torch.equal(packed.unpack(), pruned)


@given(st.lists(score_matrices(5), min_size=1, max_size=4), st.data())
def test_kth_lowest_of_many_equals_sorting_them_all(parts, data):
    everything = sorted(value for part in parts for value in part.flatten().tolist())
    k = data.draw(st.integers(1, len(everything)))
    value, ties = kth_lowest(lambda: parts, k)
    assert value == everything[k - 1]
    assert ties == k - sum(other < value for other in everything)


def test_large_matrices_are_read_in_chunks():
    scores = torch.rand(3000, 2000, generator=torch.Generator().manual_seed(0))
    value, ties = kth_lowest(lambda: [scores], 4_700_000)
    ordered = scores.flatten().sort().values
    assert value == ordered[4_699_999]
    assert ties == 4_700_000 - int((ordered < value).sum())


def test_edges_of_windows_and_groups():
    # 3 rows in groups of 2, 5 columns in windows of 4: the last window has a single column.
    keep = nm_keep_mask(torch.arange(15.0).view(3, 5), 1, 4, vector_length=2)
    assert keep.int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]
    assert nm_keep_mask(torch.rand(3, 300), 256, 256).all()
    assert nm_keep_mask(torch.rand(1, 1), 1, 256, 128).all()


def test_a_vector_counts_as_a_whole():
    # By its sum: its largest element alone would choose the first column.
    scores = torch.tensor([[5.0, 0.0, 3.0, 0.0], [0.0, 0.0, 3.0, 0.0]])
    assert nm_keep_mask(scores, 1, 4, vector_length=2).int().tolist() == [[0, 0, 1, 0]] * 2
    scores = torch.tensor([[5.0, 0.0, 4.0, 0.0], [0.0, 0.0, 4.0, 0.0]])
    assert nm_keep_mask(scores, 1, 4, vector_length=2).int().tolist() == [[0, 0, 1, 0]] * 2
    assert nm_keep_mask(scores, 1, 4).int().tolist() == [[1, 0, 0, 0], [0, 0, 1, 0]]


def test_rows_may_hold_infinities_of_both_signs():
    scores = torch.tensor([[math.inf, -math.inf, -math.inf, 0.0]])
    assert lowest_of_row(scores, 3).int().tolist() == [[0, 1, 1, 1]]


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
@pytest.mark.parametrize("scope", ["layer", "row"])
def test_empty_matrices(shape, scope):
    assert keep_mask(torch.zeros(shape), 0.5, scope).shape == shape


def test_halves_are_rounded_to_even():
    assert [zero_count(n, 0.5) for n in (1, 2, 3, 4, 5)] == [0, 1, 2, 2, 2]
    assert zero_count(100, 0.29) == 29  # 0.29 * 100 is a little less than 29


@pytest.mark.parametrize("sparsity", [-0.1, 1.1, math.nan, math.inf])
def test_impossible_sparsities(sparsity):
    with pytest.raises(ValueError, match="sparsity"):
        keep_mask(torch.ones(2, 2), sparsity)


@pytest.mark.parametrize("n, m, length", [(0, 4, 1), (5, 4, 1), (2, 257, 1), (2, 4, 0)])
def test_impossible_patterns(n, m, length):
    with pytest.raises(ValueError, match="pattern|vector_length"):
        nm_keep_mask(torch.ones(2, 8), n, m, length)


@pytest.mark.parametrize("value", [math.nan, -1.0])
def test_scores_without_an_order_are_refused(value):
    scores = torch.tensor([[1.0, value]])
    with pytest.raises(ValueError, match="1 of 2 scores are NaN or negative"):
        keep_mask(scores, 0.5)
    with pytest.raises(ValueError, match="NaN or negative"):
        nm_keep_mask(scores, 1, 2)


def test_scores_of_another_kind_are_refused():
    with pytest.raises(ValueError, match="float32 matrix"):
        keep_mask(torch.ones(4), 0.5)
    with pytest.raises(ValueError, match="float32 matrix"):
        keep_mask(torch.ones(2, 2, dtype=torch.bfloat16), 0.5)
    with pytest.raises(ValueError, match="scope 'global'"):
        keep_mask(torch.ones(2, 2), 0.5, "global")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_kept_has_its_bits_and_all_else_is_zero(dtype):
    """Whatever was there; in a part of a matrix, too."""
    whole = torch.tensor([[math.nan, -0.0, math.inf, -3.0, 7.0]] * 2, dtype=dtype)
    kept = torch.tensor([[True] * 4, [False] * 4])
    part = whole[:, :4]
    assert apply_mask_(part, kept) is part
    bits = whole.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    same = torch.tensor([math.nan, -0.0, math.inf, -3.0, 7.0], dtype=dtype).view(bits.dtype)
    assert torch.equal(bits[0], same) and not bits[1, :4].any() and whole[1, 4] == 7
