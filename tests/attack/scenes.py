"""All attacks, by the number of what was seen."""

from __future__ import annotations

from tests.attack import client_scenes as clients
from tests.attack import disk_scenes as disks
from tests.attack.scene import Scene

SCENES = (
    Scene(1, "29 bytes claim 2^32 elements", clients.send_29_bytes),
    Scene(2, "tagged fields that nobody knows", clients.send_unknown_tags),
    Scene(3, "requests of 4 to 8 MB", clients.send_big_requests),
    Scene(4, "frames that are never finished", clients.leave_frames_unfinished),
    Scene(5, "batches that are slow to decode", clients.send_batches_to_decode),
    Scene(6, "a group of thousands", clients.join_a_group),
    Scene(8, "a full disk", disks.fill_the_disk),
    Scene(9, "a disk that fails", disks.break_the_disk),
    Scene(10, "a flipped bit", disks.flip_a_bit),
    Scene(11, "a segment that is gone", disks.remove_a_segment),
    Scene(12, "metadata that is taken away", disks.take_the_metadata_away, leases_lost_max=3),
    Scene(13, "a tier worker that was paused", disks.resume_a_tier_worker, leases_lost_max=1),
    Scene(14, "a clock eight days ahead", disks.put_a_clock_ahead),
    # Last: its topics stay, and what is done beside thousands of them takes longer.
    Scene(7, "topics by the thousand", clients.make_many_topics),
)
