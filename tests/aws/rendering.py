"""A template with its parameters filled in, as CloudFormation would before it makes resources.

Conditions are evaluated, and what they leave out is left out. A reference to a resource becomes
an id or an ARN that looks like those of its type.
"""

from __future__ import annotations

import ipaddress
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.aws.templates import read_template

REGION, ACCOUNT = "us-east-1", "000000000000"
PSEUDO = {
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackName": "tidelog",
    "AWS::StackId": f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/tidelog/1",
}
ID_PREFIXES = {
    "AWS::EC2::VPC": "vpc",
    "AWS::EC2::Subnet": "subnet",
    "AWS::EC2::SecurityGroup": "sg",
    "AWS::EC2::RouteTable": "rtb",
    "AWS::EC2::LaunchTemplate": "lt",
}
_ABSENT = object()  # AWS::NoValue


@dataclass(frozen=True, slots=True)
class Rendered:
    """What is left of a template."""

    resources: Mapping[str, Mapping[str, Any]]
    outputs: Mapping[str, Any]
    conditions: Mapping[str, bool]

    def properties(self, name: str) -> Mapping[str, Any]:
        """Return the properties of a resource."""
        found: Mapping[str, Any] = self.resources[name].get("Properties", {})
        return found


def render(path: Path, parameters: Mapping[str, str] | None = None) -> Rendered:
    """Return the template with these parameters, and the defaults of the others.

    Raises ``KeyError`` if a parameter is missing or unknown.
    """
    template = read_template(path)
    declared = template.get("Parameters", {})
    given = dict(parameters or {})
    if unknown := given.keys() - declared.keys():
        raise KeyError(f"{path.name} has no parameters {sorted(unknown)}")
    values = {
        name: _typed(given[name] if name in given else one["Default"], one["Type"])
        for name, one in declared.items()
    }
    filling = _Filling(template, values)
    conditions = {name: filling.condition(name) for name in template.get("Conditions", {})}

    def kept(section: str) -> dict[str, Any]:
        return {
            name: filling.filled({key: one for key, one in item.items() if key != "Condition"})
            for name, item in template.get(section, {}).items()
            if "Condition" not in item or conditions[item["Condition"]]
        }

    outputs = {name: one["Value"] for name, one in kept("Outputs").items()}
    return Rendered(kept("Resources"), outputs, conditions)


def _typed(value: object, kind: str) -> Any:
    if kind == "Number":
        return int(str(value))
    if kind == "CommaDelimitedList" or kind.startswith("List<"):
        return [one.strip() for one in str(value).split(",")] if value else []
    return str(value)


@dataclass
class _Filling:
    template: Mapping[str, Any]
    values: Mapping[str, Any]
    _known: dict[str, bool] = field(default_factory=dict)

    def condition(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = self.filled(self.template["Conditions"][name])
        return self._known[name]

    def filled(self, value: Any) -> Any:
        if isinstance(value, list):
            return [one for item in value if (one := self.filled(item)) is not _ABSENT]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((key, argument),) = value.items()
            function = self._functions().get(key.removeprefix("Fn::"))
            if function is not None and (key in ("Ref", "Condition") or not key[0].islower()):
                return function(argument)
        filled = {key: self.filled(one) for key, one in value.items()}
        return {key: one for key, one in filled.items() if one is not _ABSENT}

    def _functions(self) -> Mapping[str, Callable[[Any], Any]]:
        return {
            "Ref": self._ref,
            "GetAtt": self._attribute,
            "Sub": self._sub,
            "If": lambda a: self.filled(a[1] if self.condition(a[0]) else a[2]),
            "Condition": self.condition,
            "Not": lambda a: not self.filled(a[0]),
            "And": lambda a: all(map(self.filled, a)),
            "Or": lambda a: any(map(self.filled, a)),
            "Equals": lambda a: str(self.filled(a[0])) == str(self.filled(a[1])),
            "Join": lambda a: str(a[0]).join(map(str, self.filled(a[1]))),
            "Split": lambda a: self.filled(a[1]).split(a[0]),
            "Select": lambda a: self.filled(a[1])[int(self.filled(a[0]))],
            "GetAZs": lambda _: [f"{REGION}{zone}" for zone in "abc"],
            "Cidr": self._cidr,
            "Base64": self.filled,
        }

    def _ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return _ABSENT
        if name in PSEUDO:
            return PSEUDO[name]
        if name in self.values:
            return self.values[name]
        kind = self.template["Resources"][name]["Type"]
        if kind in ("AWS::SNS::Topic", "AWS::ElasticLoadBalancingV2::TargetGroup"):
            return self._arn(name, kind)
        if kind in ID_PREFIXES:
            return f"{ID_PREFIXES[kind]}-{zlib.crc32(name.encode()):017x}"
        return name

    def _attribute(self, given: str | list[str]) -> str:
        name, _, attribute = ".".join([given] if isinstance(given, str) else given).partition(".")
        if attribute.startswith("Outputs."):
            return attribute.removeprefix("Outputs.")
        kind = self.template["Resources"][name]["Type"]
        if attribute == "LatestVersionNumber":
            return "1"
        return self._arn(name, kind) if attribute in ("Arn", "Id") else f"{name}.{attribute}"

    def _arn(self, name: str, kind: str) -> str:
        _, service, resource = kind.lower().split("::")
        if service == "iam":
            return f"arn:aws:iam::{ACCOUNT}:{resource.replace('instanceprofile', 'instance-profile')}/{name}"
        if service == "s3":
            return f"arn:aws:s3:::{name.lower()}"
        if service == "sqs":
            return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
        return f"arn:aws:{service}:{REGION}:{ACCOUNT}:{resource}/{name}"

    def _sub(self, given: str | list[Any]) -> str:
        text, extra = (given, {}) if isinstance(given, str) else (given[0], given[1])

        def found(match: re.Match[str]) -> str:
            name = match[1]
            if name.startswith("!"):
                return f"${{{name[1:]}}}"
            if name in extra:
                return str(self.filled(extra[name]))
            return str(self._attribute(name) if "." in name else self._ref(name))

        return re.sub(r"\$\{([^}]+)\}", found, text)

    def _cidr(self, given: list[Any]) -> list[str]:
        block, count, bits = (self.filled(one) for one in given)
        network = ipaddress.ip_network(block)
        parts = network.subnets(new_prefix=32 - int(bits))
        return [str(next(parts)) for _ in range(int(count))]
