"""The policies in ``cluster/`` allow what dsort and Ray's launcher ask of AWS, and no more."""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster_files import read_json, read_yaml
from tests.support.commands import ROOT

STORAGE = ROOT / "dsort" / "storage"
INPUT, OUTPUT = "arn:aws:s3:::INPUT-BUCKET", "arn:aws:s3:::OUTPUT-BUCKET"

RIGHTS = {
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "complete_multipart_upload": "s3:PutObject",
    "copy_object": "s3:PutObject",  # and to read what is copied, as all reading does
    "create_multipart_upload": "s3:PutObject",
    "delete_object": "s3:DeleteObject",
    "delete_objects": "s3:DeleteObject",
    "get_bucket_location": "s3:GetBucketLocation",
    "get_object": "s3:GetObject",
    "head_bucket": "s3:ListBucket",
    "head_object": "s3:GetObject",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "list_objects_v2": "s3:ListBucket",
    "list_parts": "s3:ListMultipartUploadParts",
    "put_object": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "upload_part_copy": "s3:PutObject",
}
"""The right that each call to S3 takes (AWS Service Authorization Reference, Amazon S3)."""

OPTIONAL = {"create_bucket"}
"""Calls that are made only where a bucket is missing; in the cloud its owner makes it."""

OBSTORE = frozenset({"get_object", "head_object", "list_objects_v2", "put_object", "delete_object",
                     "create_multipart_upload", "upload_part", "complete_multipart_upload",
                     "abort_multipart_upload"})  # fmt: skip
"""What the client library asks for on dsort's behalf: reads, lists, puts and multipart uploads."""

ON_BUCKETS = {"s3:ListBucket", "s3:GetBucketLocation", "s3:ListBucketMultipartUploads"}

LAUNCHER = {
    "ec2:CreateTags",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:RunInstances",
    "ec2:TerminateInstances",
    "iam:PassRole",
    "ssm:GetParameters",
}
"""What ``ray up``, ``ray down`` and the autoscaler take where roles, key and security group are
given, and nodes are ended, not stopped: ray/autoscaler/_private/aws/{config,node_provider}.py."""


def statements(name: str) -> list[dict[str, Any]]:
    policy = read_json(name)
    assert policy.keys() == {"Version", "Statement"}
    assert policy["Version"] == "2012-10-17"
    return list(policy["Statement"])


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def allowed(name: str, action: str, resource: str) -> bool:
    return any(
        action in listed(each["Action"])
        and any(fnmatchcase(resource, pattern) for pattern in listed(each["Resource"]))
        for each in statements(name)
    )


def calls_of_storage() -> set[str]:
    """The calls to S3 that dsort/storage makes by boto3."""
    import botocore.session
    from botocore import xform_name

    model = botocore.session.get_session().get_service_model("s3")
    operations = {xform_name(each) for each in model.operation_names}
    found = set()
    for path in STORAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in operations:
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and node.value in operations:
                found.add(str(node.value))  # get_paginator("list_...")
    return found


@pytest.mark.parametrize("name", ["aws/iam-policy.json", "aws/iam-launch-policy.json"])
def test_a_policy_is_well_formed_and_grants_by_name(name: str) -> None:
    sids = [each["Sid"] for each in statements(name)]

    assert len(sids) == len(set(sids))
    for each in statements(name):
        assert each.keys() - {"Condition"} == {"Sid", "Effect", "Action", "Resource"}
        assert each["Effect"] == "Allow"
        assert each["Sid"].isalnum()
        assert not any("*" in action for action in listed(each["Action"]))


def test_the_nodes_policy_has_known_actions_alone() -> None:
    actions = {
        action for each in statements("aws/iam-policy.json") for action in listed(each["Action"])
    }

    assert actions == set(RIGHTS.values())


def test_the_nodes_may_make_every_call_that_storage_makes() -> None:
    calls = calls_of_storage()

    assert calls - OPTIONAL <= RIGHTS.keys()
    for call in (calls | OBSTORE) - OPTIONAL:
        right = RIGHTS[call]
        resource = OUTPUT if right in ON_BUCKETS else f"{OUTPUT}/shard-000000.tar"
        assert allowed("aws/iam-policy.json", right, resource), call


@pytest.mark.parametrize("right", ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"])
def test_the_nodes_cannot_touch_the_input(right: str) -> None:
    assert not allowed("aws/iam-policy.json", right, f"{INPUT}/shard-000000.tar")


def test_the_nodes_can_read_the_input() -> None:
    assert allowed("aws/iam-policy.json", "s3:GetObject", f"{INPUT}/a/b.tar")
    assert allowed("aws/iam-policy.json", "s3:ListBucket", INPUT)


def test_the_launcher_may_do_what_ray_does_and_no_more() -> None:
    name = "aws/iam-launch-policy.json"

    assert {a for each in statements(name) for a in listed(each["Action"])} == LAUNCHER
    assert (
        read_yaml("aws/cluster.yaml")["provider"]["cache_stopped_nodes"] is False
    )  # StopInstances else


def test_the_launcher_ends_and_tags_nodes_of_its_own_cluster_alone() -> None:
    cluster = read_yaml("aws/cluster.yaml")["cluster_name"]
    by_sid = {each["Sid"]: each for each in statements("aws/iam-launch-policy.json")}
    conditions = {
        sid: each.get("Condition", {}).get("StringEquals") for sid, each in by_sid.items()
    }

    assert conditions["TagAndEndNodesOfThisCluster"] == {
        "ec2:ResourceTag/ray-cluster-name": cluster
    }
    assert conditions["StartNodesOfThisCluster"] == {"aws:RequestTag/ray-cluster-name": cluster}
    assert conditions["NameNodesAsTheyStart"] == {"ec2:CreateAction": "RunInstances"}
    for each in by_sid.values():
        broad = any(action.startswith("ec2:Describe") for action in listed(each["Action"]))
        assert broad or each["Resource"] != "*", each["Sid"]


def test_the_launcher_passes_on_the_roles_that_nodes_get() -> None:
    types = read_yaml("aws/cluster.yaml")["available_node_types"].values()
    profiles = {each["node_config"]["IamInstanceProfile"]["Name"] for each in types}
    (passed,) = (each for each in statements("aws/iam-launch-policy.json")
                 if each["Action"] == "iam:PassRole")  # fmt: skip

    assert (
        {Path(arn).name for arn in passed["Resource"]} == profiles == {"dsort-head", "dsort-node"}
    )
    assert passed["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
