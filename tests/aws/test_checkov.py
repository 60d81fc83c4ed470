"""What checkov finds in the templates: no more than is accepted, and all of that argued."""

from __future__ import annotations

import re

import pytest

from tests.aws.templates import read_template, template_paths
from tools import checkov
from tools.places import ROOT, ToolAbsent

FUNCTIONS = (
    "AdminFunction",
    "AdminJobsFunction",
    "JobsFunction",
    "RetentionFunction",
    "SchemasFunction",
    "ScrubFunction",
)
ACCEPTED = {
    ("CKV_AWS_21", "SegmentBucket"),
    ("CKV_AWS_23", "NodeSecurityGroup"),
    ("CKV_AWS_65", "TableTasks"),
    ("CKV_AWS_65", "Tasks"),
    ("CKV_AWS_91", "Bootstrap"),
    ("CKV_AWS_149", "AdminSecret"),
    ("CKV_AWS_149", "TokenSecret"),
    *(
        (check, name)
        for check in ("CKV_AWS_116", "CKV_AWS_117", "CKV_AWS_173")
        for name in FUNCTIONS
    ),
}


def test_what_is_accepted_is_argued_in_the_docs_and_about_resources_that_exist() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    argued = re.findall(r"^\| `(CKV_\w+)` \| [^|]+ \| [^|]{20,} \|$", page, re.MULTILINE)
    assert sorted(argued) == sorted({check for check, _ in ACCEPTED})
    resources = {name for path in template_paths() for name in read_template(path)["Resources"]}
    assert {name for _, name in ACCEPTED} <= resources


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_checkov_finds_no_more_than_is_accepted() -> None:
    try:
        found = checkov.findings()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    assert {(one.check, one.resource) for one in found} == ACCEPTED
