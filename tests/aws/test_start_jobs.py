"""The built function that starts jobs, under Lambda's runtime client, against EMR's requests."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from tidelog_core.metadata import records

from tests.aws.lambda_runtime import BuiltFunction
from tests.aws.stacks import SETTINGS, nested_stacks
from tests.aws.templates import read_template
from tests.aws.test_template import JOB_ENVIRONMENT, SCHEDULED, handler_of
from tests.support.emr_server import served
from tests.support.function_world import folder_world
from tools import job_bundle, sam


async def make_due(folder: Path) -> None:
    """Tier a dirty segment behind a smaller clean one."""
    async with folder_world(folder) as world:
        topic = await world.create_topic("t", configs={"cleanup.policy": "compact"})
        clean = await world.copy(topic, 0, size=10)
        clean = dataclasses.replace(clean, compacted_up_to=clean.end_offset)
        await world.store.commit([records.put(clean, is_logged=False)])
        await world.copy(topic, 10, size=100)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_built_function_starts_one_run(built_template: Path, tmp_path: Path) -> None:
    await make_due(tmp_path)
    with served() as emr:
        root = nested_stacks(SETTINGS["everything"])[""]
        variables = root.properties("JobsFunction")["Environment"]["Variables"]
        environment = {
            **variables,  # as the template has them, but for what other resources are called
            "TIDELOG_JOB_APPLICATION": "app",
            "TIDELOG_JOB_ROLE": JOB_ENVIRONMENT["TIDELOG_JOB_ROLE"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "TIDELOG_METADATA": f"sqlite://{tmp_path}/metadata.db",
            "TIDELOG_OBJECTS": f"file://{tmp_path}/objects",
            "AWS_ENDPOINT_URL_EMR_SERVERLESS": emr.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        folder = built_template.parent
        with BuiltFunction(folder, "JobsFunction", handler_of("jobs"), environment) as function:
            answers = [function.invoke(SCHEDULED) for _ in range(2)]
        assert [answer["run_id"] for answer in answers] == ["run-0", None]
        assert answers[1]["decision"] == "run run-0 is under way"
        [run] = emr.runs
        submit = run["jobDriver"]["sparkSubmit"]
        assert submit["entryPoint"] == "s3://bundles/jobs/compact.py"
        assert submit["entryPointArguments"][-2:] == ["--topic", "t"]
        assert (
            "spark.archives=s3://bundles/jobs/tidelog-jobs.tar.gz#"
            in submit["sparkSubmitParameters"]
        )


def test_what_emr_would_refuse_is_refused_here() -> None:
    with served() as emr:
        client = boto3.client(
            "emr-serverless",
            region_name="us-east-1",
            endpoint_url=emr.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        with pytest.raises(ClientError, match=r"StartJobRun\.name is ' '"):
            client.start_job_run(
                applicationId="app", clientToken="1", executionRoleArn="x" * 20, name=" "
            )
        client.close()
        assert emr.runs == []


def test_the_template_names_what_the_bundle_holds() -> None:
    template = read_template(sam.TEMPLATE)
    variables = template["Resources"]["JobsFunction"]["Properties"]["Environment"]["Variables"]
    entry_point = variables["TIDELOG_JOB_ENTRY_POINT"]["Sub"]
    assert entry_point.rpartition("/")[2] in {f"{job}.py" for job in job_bundle.JOBS}
    assert all((job_bundle.PROGRAMS / f"{job}.py").is_file() for job in job_bundle.JOBS)
    parameters = variables["TIDELOG_JOB_SPARK_PARAMETERS"]["Sub"]
    assert f"/{job_bundle.ARCHIVE}#tidelog" in parameters
    assert "driverEnv.PYTHONPATH=./tidelog/packages" in parameters
    python = template["Parameters"]["JobPython"]["Default"]
    assert python.endswith(f"python{job_bundle.PYTHON_VERSION}")
