"""What `make audit` makes of the lists that it asks."""

import audit


def test_locked_versions_are_read():
    pins = audit.locked()
    assert {"jax", "numpy", "pytest"} <= pins.keys()
    assert all(version[0].isdigit() for version in pins.values())


def test_weak_versions_are_found_under_any_spelling():
    bad = {"Some_Package": ["<1.0", ">=2,<2.3"], "other": ["<9"]}
    assert audit.listed({"some-package": "2.1"}, bad) == ["some-package 2.1: >=2,<2.3 is weak"]
    assert audit.listed({"some-package": "1.5", "third": "1"}, bad) == []


def test_what_was_not_looked_up_does_not_count():
    rows = [
        {"name": "one", "version": "1", "vulns": [{"id": "CVE-1"}]},
        {"name": "two", "version": "2", "vulns": []},
        {"name": "three", "skip_reason": "not found"},
    ]
    assert audit.asked({"dependencies": rows}) == (2, ["one 1: CVE-1"])
