"""What `benchmarks.rollover` counts, and how it switches a link."""

from __future__ import annotations

from benchmarks.rollover import replace_link
from benchmarks.rollover_clients import Stream, outcome

EXPECTED = [[1, 2, 3], [4, 5, 6]]


def test_a_quiet_time_is_clean():
    streams = [Stream(0, [1, 2, 3], [0.5, 0.1, 0.2], 1), Stream(1, [4, 5, 6], [0.4, 0.3], 2)]
    found = outcome("nothing", 2.0, streams, EXPECTED)
    assert found.is_clean
    assert (found.requests, found.accepted) == (2, 3)
    assert (found.longest_first_s, found.longest_gap_s) == (0.5, 0.3)


def test_every_kind_of_loss_is_counted_once():
    streams = [
        Stream(0, error="UnavailableError: no replica"),
        Stream(0, [1, 2], [0.5, 0.1], error="UnavailableError: the target is gone"),
        Stream(1, [4, 5, 7], [0.5, 0.1, 0.1]),
        Stream(1, [4, 5], [0.5, 0.1]),
        Stream(1, [4, 5, 6], [0.5, 0.1, 0.1]),
    ]
    found = outcome("loss", 2.0, streams, EXPECTED)
    assert (found.failed, found.cut, found.differing) == (1, 1, 2)
    assert not found.is_clean


def test_nothing_but_failures_is_no_crash():
    found = outcome("loss", 2.0, [Stream(0, error="gone")], EXPECTED)
    assert (found.failed, found.longest_first_s, found.longest_gap_s) == (1, 0.0, 0.0)


def test_a_link_is_replaced_in_one_move(tmp_path):
    old, new, link = (tmp_path / name for name in ("old", "new", "draft"))
    old.mkdir()
    new.mkdir()
    link.symlink_to(old)
    replace_link(link, new)
    assert link.resolve() == new
    assert sorted(each.name for each in tmp_path.iterdir()) == ["draft", "new", "old"]
