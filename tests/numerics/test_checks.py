"""What users hand over is checked, and refused with a remedy that is one."""

import pytest

from evkf.errors import InputError
from evkf.numerics.checks import check_known


@pytest.mark.parametrize(
    ("known", "remedy"),
    [({"target": 1, "reward": 2}, "choose among target, reward"), ({}, "leave it out")],
)
def test_an_unknown_name_is_told_what_there_is(known, remedy):
    check_known("column", "target", {"target"}, "trials")
    with pytest.raises(InputError, match=rf"no column 'goal' \(in trials\): {remedy}"):
        check_known("column", "goal", known, "trials")
