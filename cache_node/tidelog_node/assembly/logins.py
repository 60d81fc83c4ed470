"""Builds the login service of the listeners with SASL, and the expiry of tokens."""

from __future__ import annotations

import time

from tidelog_core.admin.security.delegation_tokens import DelegationTokenAdmin, TokenTimes
from tidelog_core.security.oauthbearer import OAUTHBEARER_MECHANISM
from tidelog_core.setting_values.urls import parse_jwks_url

from tidelog_node.assembly.cluster import Cluster
from tidelog_node.authentication.authentication import AuthenticationRules
from tidelog_node.authentication.bearer_tokens import BearerTokens, TokenRules
from tidelog_node.authentication.exchanges import Mechanisms
from tidelog_node.authentication.issuer_keys import IssuerKeys
from tidelog_node.authentication.login import LoginService
from tidelog_node.authentication.login_credentials import ImageCredentials
from tidelog_node.authentication.login_log import LoginLog
from tidelog_node.authentication.password_checks import PasswordChecks
from tidelog_node.authentication.token_expiry import TokenExpiry
from tidelog_node.dispatch import Dispatch
from tidelog_node.node_context import NodeContext
from tidelog_node.settings import NodeSettings


def token_admin(cluster: Cluster) -> DelegationTokenAdmin:
    """Return the admin of delegation tokens, which refuses if the node has no secret key."""
    node = cluster.node
    config = node.static_config
    return DelegationTokenAdmin(
        node.store,
        node.view,
        secret=cluster.token_secret,
        times=TokenTimes(
            config.delegation_token_max_lifetime_ms, config.delegation_token_expiry_time_ms
        ),
        clock_ms=node.clock_ms,
        may_expire=node.may_expire,
    )


def token_expiry(node: NodeContext, admin: DelegationTokenAdmin) -> TokenExpiry:
    """Return the task that removes expired delegation tokens."""
    interval_ms = node.static_config.delegation_token_expiry_check_interval_ms
    return TokenExpiry(node, admin, interval_seconds=interval_ms / 1000)


def token_issuer_keys(node: NodeContext, settings: NodeSettings) -> IssuerKeys | None:
    """Return the keys of the issuer of tokens, ``None`` if no listener takes any."""
    config = node.static_config
    source = parse_jwks_url(config.sasl_oauthbearer_jwks_endpoint_url)
    enabled = (one.config.sasl_enabled_mechanisms for one in settings.listeners.clients)
    if source is None or not any(OAUTHBEARER_MECHANISM in names for names in enabled):
        return None
    refresh_ms = config.sasl_oauthbearer_jwks_endpoint_refresh_ms
    return IssuerKeys(source, refresh_seconds=refresh_ms / 1000)


def _bearer_tokens(node: NodeContext, keys: IssuerKeys) -> BearerTokens:
    config = node.static_config
    rules = TokenRules(
        issuer=config.sasl_oauthbearer_expected_issuer,
        audiences=config.sasl_oauthbearer_expected_audience,
        user_claim=config.sasl_oauthbearer_sub_claim_name,
        groups_claim=config.sasl_oauthbearer_groups_claim_name,
        clock_skew_seconds=config.sasl_oauthbearer_clock_skew_seconds,
    )
    return BearerTokens(rules, keys.find, time.time)


def build_login_service(
    cluster: Cluster,
    dispatch: Dispatch,
    settings: NodeSettings,
    *,
    logins: LoginLog,
    issuer_keys: IssuerKeys | None,
) -> LoginService:
    """Return the service for the logins of clients at the listeners with SASL."""
    node = cluster.node
    tokens = None if issuer_keys is None else _bearer_tokens(node, issuer_keys)
    failure_delay_ms = node.static_config.connection_failed_authentication_delay_ms

    def credentials() -> ImageCredentials:
        image = node.view.image
        return ImageCredentials(
            image.scram_users, image.delegation_tokens, cluster.token_secret, node.clock_ms
        )

    return LoginService(
        rules={
            listener.name: AuthenticationRules(
                mechanisms=listener.config.sasl_enabled_mechanisms,
                token_bytes_max=listener.config.sasl_server_max_receive_size,
                failure_delay_seconds=failure_delay_ms / 1000,
                session_ms_max=listener.config.connections_max_reauth_ms,
            )
            for listener in settings.listeners.clients
            if listener.protocol.has_sasl
        },
        dispatch=dispatch,
        mechanisms=Mechanisms(
            credentials, PasswordChecks(credentials, node.executor), tokens=tokens
        ),
        logins=logins,
        now=time.monotonic,
    )
