"""The SASL mechanisms by which a user logs in with a password."""

from __future__ import annotations

from tidelog_core.security.plain import PLAIN_MECHANISM
from tidelog_core.security.scram_credentials import ScramMechanism

PASSWORD_MECHANISMS = (*(mechanism.value for mechanism in ScramMechanism), PLAIN_MECHANISM)
