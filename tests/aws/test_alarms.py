"""What the alarms watch of functions that answer their failures themselves."""

from __future__ import annotations

from tests.aws.templates import resources


def test_an_alarm_watches_the_server_errors_of_the_api() -> None:
    """Lambda counts no error where a function returns an answer with a status from 500 on."""
    alarms = [one["Properties"] for _, one in resources("AWS::CloudWatch::Alarm")]
    (found,) = [one for one in alarms if one.get("MetricName") == "5xx"]
    assert found["Namespace"] == "AWS/ApiGateway"
    assert found["Dimensions"] == [{"Name": "ApiId", "Value": {"Ref": "AdminApi"}}]
    assert (found["Statistic"], found["Threshold"]) == ("Sum", 0)
    assert found["AlarmActions"] == [{"Ref": "AlarmTopic"}]
