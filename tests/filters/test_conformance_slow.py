"""The tests of `test_conformance`, on the pairs that are marked slow or long."""

# ruff: noqa: F403
from tests.filters.test_conformance import *
from tests.quick import quick_compilation  # noqa: F401

SLOW = True

# None of these pairs takes part.
del test_compiled_ahead_is_stepping_bit_for_bit
del test_a_new_trial_begins_with_a_restart
del test_two_scans_are_one_long_scan
del test_compiling_changes_nothing
del test_very_short_recordings
