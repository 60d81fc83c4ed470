"""Jobs of the admin API: verifications and erasures, in as many invocations as they need.

    request → an item (``metadata.admin_jobs``) → ``job_starter`` → ``handler`` → ``run`` → ``work``

A run takes the job by a conditional write, renews its hold of a minute while it works, and stores
its position after every step. When its time is nearly over it gives the job back, and another run
is started. A run that dies leaves a hold that lapses; Lambda's retry, the next look of a client and
the schedule each start another run. A run that has lost its hold cannot write any more, so an event
that comes twice does no work twice.
"""
