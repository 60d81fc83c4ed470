"""What confluent-kafka's serializers wrote is decoded when the node and its registry are gone."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from tidelog_spark.jobs.values.bucket_schemas import read_schemas
from tidelog_spark.jobs.values.decoding import DecoderSpec

from tests.support.node_process import NodeProcess
from tools.ports import free_port

USER = '{"type":"record","name":"User","fields":[{"name":"id","type":"long"}]}'
ORDER = '{"type":"record","name":"Order","fields":[{"name":"by","type":"User"}]}'
JSON = json.dumps({"title": "Row", "type": "object", "properties": {"n": {"type": "integer"}}})


def to(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


@pytest.mark.slow  # It starts a node; tests/spark/jobs/values/test_registry_values.py runs always.
def test_values_of_serializers_are_decoded_from_the_bucket_alone(tmp_path: Path) -> None:
    port = free_port()
    metadata, objects = f"sqlite://{tmp_path}/metadata.db", f"file://{tmp_path}/objects"
    part = FileDescriptorProto(name="part.proto", package="p", syntax="proto3")
    part.message_type.add(name="Part").field.add(name="n", number=1, type=5, label=1)
    whole = FileDescriptorProto(name="whole.proto", package="p", syntax="proto3")
    whole.dependency.append("part.proto")
    whole.message_type.add(name="Other")
    field = whole.message_type.add(name="Whole").field.add(name="part", number=1, label=1)
    field.type, field.type_name = 11, ".p.Part"
    pool = DescriptorPool()
    for file in (part, whole):
        pool.AddSerializedFile(file.SerializeToString())
    made = GetMessageClass(pool.FindMessageTypeByName("p.Whole"))
    message = made()
    message.part.n = 7
    node = NodeProcess(
        tmp_path / "node",
        metadata_store=metadata,
        object_store=objects,
        arguments=("--registry-port", str(port)),
    )
    with node, SchemaRegistryClient({"url": f"http://127.0.0.1:{port}"}) as client:
        client.register_schema("user", Schema(USER, "AVRO"))
        order = Schema(ORDER, "AVRO", [SchemaReference("User", "user", 1)])
        values = {
            "avro": AvroSerializer(client, order)({"by": {"id": 7}}, to("avro")),
            "json": JSONSerializer(JSON, client)({"n": 7}, to("json")),
            "protobuf": ProtobufSerializer(made, client)(message, to("protobuf")),
        }
        node.kill()
    read = {}
    for topic, value in values.items():
        schemas = read_schemas(metadata, objects, subject=f"{topic}-value")
        name = "p.Whole" if topic == "protobuf" else ""
        decoder = DecoderSpec(format="registry", registry=schemas, message=name).open()
        decoded = decoder.decode(pa.array([value], pa.binary()))
        assert decoded.problems == {}
        names = [one.name for one in decoder.fields]
        columns = [one.to_pylist()[0] for one in decoded.columns]
        read[topic] = dict(zip(names, columns, strict=True))
    assert read == {"avro": {"by": {"id": 7}}, "json": {"n": 7}, "protobuf": {"part": {"n": 7}}}
