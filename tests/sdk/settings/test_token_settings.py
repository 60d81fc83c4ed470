"""The source of a client's tokens, by the names of Java, librdkafka and confluent-kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog.errors import InvalidConfig
from tidelog.settings.security import connection_settings
from tidelog.tokens.cached_tokens import shared_tokens
from tidelog.tokens.client_credentials import ClientCredentials
from tidelog.tokens.iam_token import IamToken
from tidelog.tokens.token_file import TokenFile
from tidelog.wire.sasl import SaslToken

BASE = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
URL = {"sasl.oauthbearer.token.endpoint.url": "https://login.example.org/token"}
AWS = {"sasl.oauthbearer.metadata.authentication.type": "aws_iam"}
WANTED = ClientCredentials(
    endpoint=URL["sasl.oauthbearer.token.endpoint.url"],
    client_id="app",
    client_secret="c;s",
    scope="kafka",
    authority=Path("/idp.pem"),
)


def login(given: dict[str, str]) -> SaslToken:
    sasl = connection_settings({**BASE, **given})["sasl"]
    assert isinstance(sasl, SaslToken)
    return sasl


@pytest.mark.parametrize(
    "given",
    [
        {  # Java before 4.1
            "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer"
            ".secured.OAuthBearerLoginCallbackHandler",
            "sasl.jaas.config": "kafkashaded.org.apache.kafka.common.security.oauthbearer"
            '.OAuthBearerLoginModule required clientId="app" clientSecret="c;s" scope="kafka"'
            ' ssl.truststore.location="/idp.pem" extension_logicalCluster="lkc-1";',
            "sasl.login.connect.timeout.ms": "1000",
        },
        {  # Java from 4.1 on; the module has no options
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer"
            ".OAuthBearerLoginModule required;",
            "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer"
            ".ClientCredentialsJwtRetriever",
            "sasl.oauthbearer.client.credentials.client.id": "app",
            "sasl.oauthbearer.client.credentials.client.secret": "c;s",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
            "https.ca.location": "/idp.pem",
        },
        {  # librdkafka
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "app",
            "sasl.oauthbearer.client.secret": "c;s",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
            "https.ca.location": "/idp.pem",
        },
    ],
    ids=["java", "java-4.1", "librdkafka"],
)
def test_a_client_of_an_issuer_has_the_names_of_every_client(given: dict[str, str]) -> None:
    made = login({**URL, **given})
    assert made.extensions == (("logicalCluster", "lkc-1"),)
    assert made.token == shared_tokens(WANTED).token


def test_a_file_of_a_token_is_an_address(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a%20token"
    made = login({"sasl.oauthbearer.token.endpoint.url": url})
    assert made.token == TokenFile(tmp_path / "a token")


def test_a_role_of_aws_has_the_names_of_confluent_kafka() -> None:
    config = "audience=tidelog, region=eu-west-1,duration_seconds=600,signing_algorithm=RS256"
    made = login({**AWS, "sasl.oauthbearer.config": config})
    assert made.token == IamToken(
        audience="tidelog", region="eu-west-1", duration_seconds=600, algorithm="RS256"
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url"),
        (URL, "needs sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret"),
        (
            {
                **URL,
                "sasl.oauthbearer.client.id": "a",
                "sasl.oauthbearer.client.secret": "b",
                "sasl.oauthbearer.client.secret.location": "/c",
            },
            "give one of",
        ),
        (
            {"sasl.oauthbearer.token.endpoint.url": "http://example.org/"},
            "must be an https address",
        ),
        ({"sasl.oauthbearer.token.endpoint.url": "file://host/x"}, "the file's whole path"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:x"}, "the file's whole path"),
        ({**URL, "sasl.jaas.config": "x.PlainLoginModule required;"}, "OAuthBearerLoginModule"),
        (
            {"sasl.oauthbearer.jwt.retriever.class": "x.JwtBearerJwtRetriever"},
            "must be Kafka's ClientCredentialsJwtRetriever or",
        ),
        ({"sasl.oauthbearer.method": "basic"}, "method must be one of default, oidc"),
        (AWS, "sasl.oauthbearer.config: the audience must have 1 to 1000 characters"),
        ({**AWS, "sasl.oauthbearer.config": "audience=a,duration_seconds=59"}, "60 to 3600"),
        ({**AWS, "sasl.oauthbearer.config": "audience=a,duration_seconds=x"}, "60 to 3600"),
        ({**AWS, "sasl.oauthbearer.config": "audience=a,signing_algorithm=HS256"}, "ES384, RS256"),
        ({**AWS, "sasl.oauthbearer.config": "audience=a,role=b"}, "role is not known"),
        ({**AWS, "sasl.oauthbearer.config": "audience"}, "must be name=value"),
        ({**URL, "sasl.oauthbearer.extensions": "auth=x"}, "a name of letters, not auth"),
        ({**URL, "sasl.oauthbearer.extensions": "a-b=x"}, "a name of letters"),
        ({**URL, "sasl.oauthbearer.extensions": "ab=ä"}, "printable ASCII"),
    ],
)
def test_a_wrong_source_is_explained(given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidConfig, match=problem):
        connection_settings({**BASE, **given})


def test_a_module_of_tokens_is_none_for_passwords() -> None:
    given = {
        **BASE,
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "x.OAuthBearerLoginModule required;",
    }
    with pytest.raises(InvalidConfig, match="must be ScramLoginModule required"):
        connection_settings(given)
