"""Learns the rate limit service by reflection, as grpcurl does, and compares it with the messages that Envoy publishes.

    reflected.py ADDRESS CALL

CALL is a `RateLimitRequest` as JSON. Prints an object: `services`; `fields`, the number of fields that agree with the
published ones; `differences`; and the replies to two calls, one with the reflected messages and one with the published.
"""

import json
import sys

import grpc
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

import service

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = f"/{SERVICE}/ShouldRateLimit"


def kind(field):
    """The type of a field, with the name of its message or enumeration."""
    named = field.message_type or field.enum_type
    return (field.number, field.type, field.is_repeated, named.full_name if named else None)


def messages(message):
    """A message and all that it uses, each once."""
    found, left = {}, [message]
    while left:
        own = left.pop()
        if own.full_name not in found:
            found[own.full_name] = own
            left += [field.message_type for field in own.fields if field.message_type]
            left += own.nested_types
    return found


def compare(reflected, published):
    agreeing, differences = 0, []
    for name, own in messages(reflected).items():
        other = published.FindMessageTypeByName(name).fields_by_name
        for field in own.fields:
            if field.name not in other:
                differences.append(f"{name}.{field.name}: not published")
            elif kind(field) != kind(other[field.name]):
                differences.append(f"{name}.{field.name}: {kind(other[field.name])}")
            else:
                agreeing += 1
        for enum in own.enum_types:
            values = published.FindEnumTypeByName(enum.full_name).values_by_name
            for value in enum.values:
                if value.name not in values or values[value.name].number != value.number:
                    differences.append(f"{enum.full_name}.{value.name}: another value")
                else:
                    agreeing += 1
    return agreeing, differences


def ask(connection, call, request, response):
    method = connection.unary_unary(
        METHOD,
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    reply = method(json_format.Parse(call, request()), timeout=service.CALL_SECONDS)
    return json_format.MessageToDict(reply, preserving_proto_field_name=True)


def main(address, call):
    with grpc.insecure_channel(address) as connection:
        database = ProtoReflectionDescriptorDatabase(connection)
        pool = descriptor_pool.DescriptorPool(database)
        method = pool.FindServiceByName(SERVICE).FindMethodByName("ShouldRateLimit")
        published = rls_pb2.DESCRIPTOR.pool
        inputs = compare(method.input_type, published)
        outputs = compare(method.output_type, published)
        reflected = [
            message_factory.GetMessageClass(own) for own in (method.input_type, method.output_type)
        ]
        result = {
            "services": list(database.get_services()),
            "fields": inputs[0] + outputs[0],
            "differences": inputs[1] + outputs[1],
            "replies": [
                ask(connection, call, *reflected),
                ask(connection, call, rls_pb2.RateLimitRequest, rls_pb2.RateLimitResponse),
            ],
        }
    print(json.dumps(result))


main(*sys.argv[1:])
