"""The nodes' network: one of the stack's own, or in a VPC that is there already."""

from __future__ import annotations

from tests.aws.rendering import Rendered
from tests.aws.stacks import NODES, OWN_VPC, nested_stacks

GROUP = {"NodeSecurityGroupId": "sg-0123456789abcdef0"}
TABLES = {"RouteTableIds": "rtb-0000000a,rtb-0000000b"}


def network(**given: str) -> Rendered:
    return nested_stacks({**NODES, **given})["Network"]


def services(stack: Rendered) -> set[str]:
    """Return the services that have endpoints."""
    return {
        one["Properties"]["ServiceName"].rpartition(".")[2]
        for one in stack.resources.values()
        if one["Type"] == "AWS::EC2::VPCEndpoint"
    }


def test_a_new_vpc_reaches_aws_through_endpoints_alone() -> None:
    made = network()
    kinds = [one["Type"] for one in made.resources.values()]
    assert kinds.count("AWS::EC2::Subnet") == 3
    assert not {"AWS::EC2::InternetGateway", "AWS::EC2::NatGateway"} & set(kinds)
    common = {"s3", "dynamodb", "logs", "monitoring", "cloudformation"}
    assert services(made) == common | {"secretsmanager"}
    assert services(network(ClientAccess="open")) == common
    assert services(network(VpcEndpoints="no")) == set()


def test_a_given_vpc_gets_a_security_group_and_nothing_else() -> None:
    given = network(**OWN_VPC)
    assert list(given.resources) == ["NodeSecurityGroup"]
    group = given.properties("NodeSecurityGroup")
    assert group["VpcId"] == OWN_VPC["VpcId"]
    assert {rule["CidrIp"] for rule in group["SecurityGroupIngress"]} == {"10.0.0.0/8"}
    assert given.outputs["VpcId"] == OWN_VPC["VpcId"]
    subnets = [given.outputs[f"Subnet{number}"] for number in (1, 2, 3)]
    assert ",".join(subnets) == OWN_VPC["SubnetIds"]


def test_a_given_group_is_the_nodes() -> None:
    given = network(**OWN_VPC, **GROUP)
    assert given.resources == {}
    assert given.outputs["NodeSecurityGroup"] == GROUP["NodeSecurityGroupId"]


def test_a_given_vpc_gets_the_endpoints_that_are_asked_for() -> None:
    given = network(**OWN_VPC, VpcEndpoints="yes", SessionAccess="yes")
    assert services(given) == {
        "logs", "monitoring", "cloudformation", "secretsmanager", "ssm", "ssmmessages",
    }  # fmt: skip
    given = network(**OWN_VPC, **TABLES, VpcEndpoints="yes")
    assert {"s3", "dynamodb"} <= services(given)
    assert given.properties("S3Endpoint")["RouteTableIds"] == ["rtb-0000000a", "rtb-0000000b"]
    assert given.properties("LogsEndpoint")["SubnetIds"] == OWN_VPC["SubnetIds"].split(",")


def test_shells_on_machines_need_to_be_asked_for() -> None:
    for wants in ("yes", "no"):
        stacks = nested_stacks({**NODES, "SessionAccess": wants})
        policy = str(stacks["Nodes"].properties("NodeRole"))
        assert ("ssmmessages:" in policy) == (wants == "yes")
        assert ({"ssm", "ssmmessages"} <= services(stacks["Network"])) == (wants == "yes")
        # Nobody connects to machines: there is no key of SSH, and no rule for it.
        instance = stacks["Nodes/Zone1"].properties("Instance")["LaunchTemplateData"]
        assert "KeyName" not in instance
        rules = stacks["Network"].properties("NodeSecurityGroup")["SecurityGroupIngress"]
        assert not any(rule["FromPort"] <= 22 <= rule["ToPort"] for rule in rules)


LINK = {
    "PrivateLinkHost": "kafka.example.org",
    "PrivateLinkPrincipals": "arn:aws:iam::111111111111:root,arn:aws:iam::222222222222:root",
}


def test_clients_of_other_vpcs_come_through_a_service_to_a_port_of_each_broker() -> None:
    stacks = nested_stacks({**NODES, **LINK})
    nodes = stacks["Nodes"]
    assert nodes.properties("EndpointService")["AcceptanceRequired"] is True
    allowed = nodes.properties("EndpointServicePermissions")["AllowedPrincipals"]
    assert allowed == LINK["PrivateLinkPrincipals"].split(",")
    (rule,) = [
        rule
        for rule in stacks["Network"].properties("NodeSecurityGroup")["SecurityGroupIngress"]
        if "PrivateLink" in rule["Description"]
    ]
    ports: list[int] = []
    for zone in (1, 2, 3):
        link = stacks[f"Nodes/PrivateLink{zone}"]
        listened = [link.properties(f"Listener{number}")["Port"] for number in (1, 2, 3, 4)]
        targeted = [link.properties(f"Targets{number}")["Port"] for number in (1, 2, 3, 4)]
        assert listened == targeted
        ports += map(int, listened)
        group = stacks[f"Nodes/Zone{zone}"].properties("Instances")
        assert len(group["TargetGroupARNs"]) == 2  # and the four, by the output of the stack
    assert ports == list(range(rule["FromPort"], rule["ToPort"] + 1))
    bootstrap = stacks[""].outputs["PrivateLinkBootstrapServers"]
    assert bootstrap == ",".join(f"kafka.example.org:{port}" for port in ports[::4])


def test_without_privatelink_nobody_comes_through_it() -> None:
    stacks = nested_stacks(NODES)
    assert not [name for name in stacks if "PrivateLink" in name]
    assert "EndpointService" not in stacks["Nodes"].resources
    assert "PrivateLink" not in str(stacks["Network"].properties("NodeSecurityGroup"))
    group = stacks["Nodes/Zone1"].properties("Instances")
    assert len(group["TargetGroupARNs"]) == 1


def test_a_stack_tells_what_others_build_on() -> None:
    outputs = nested_stacks({**NODES, **OWN_VPC})[""].outputs
    assert {
        *("VpcId", "SubnetIds", "NodeSecurityGroup", "NodeRole", "LoadBalancer"),
        *("MetadataTable", "Bucket", "AlarmTopic", "BootstrapServers"),
    } <= outputs.keys()
