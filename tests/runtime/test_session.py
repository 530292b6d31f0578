"""The options of a session: threads that the host can keep busy, and none that spins under a quota."""

import pytest

from edgepeft.device.host import machine
from edgepeft.runtime import session
from edgepeft.runtime.session import session_options


@pytest.mark.parametrize(
    ("profile", "allowed", "quota", "threads", "spins"),
    [
        (None, (0, 1, 2, 3), None, 4, "1"),
        (2, (0, 1, 2, 3), None, 2, "1"),
        (8, (0, 1, 2, 3), None, 4, "1"),
        (None, (5,), None, 1, "1"),
        (None, (0, 1, 2, 3), 2.5, 2, "0"),
        (4, (0, 1, 2, 3), 0.5, 1, "0"),
        (1, (0, 1, 2, 3), 3.0, 1, "0"),
    ],
)
def test_threads_are_the_least_of_profile_affinity_and_quota(monkeypatch, profile, allowed, quota, threads, spins):
    monkeypatch.setattr(machine, "affinity", lambda: allowed)
    for module in (machine, session):
        monkeypatch.setattr(module, "cpu_quota", lambda *_: quota)
    options = session_options(profile)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (threads, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == spins
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "50"  # not long, others may work
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"  # nothing spins between requests
