//! The descriptors of the service: the fields that are read or written.

use crate::grpc::descriptors::{FileTable, MessageShape, MessageTable, MethodTable, ServiceTable};

const UNIT: &str = "#.envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit";
const CODE: &str = "#.envoy.service.ratelimit.v3.RateLimitResponse.Code";
const RATE_LIMIT: &str = ".envoy.service.ratelimit.v3.RateLimitResponse.RateLimit";
const STATUSES: &str = "*.envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus";
const DURATION: &str = ".google.protobuf.Duration";
const UINT32: &str = ".google.protobuf.UInt32Value";
const UINT64: &str = ".google.protobuf.UInt64Value";
const DESCRIPTORS: &str = "*.envoy.extensions.common.ratelimit.v3.RateLimitDescriptor";
const ENTRIES: &str = "*.envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry";
const OVERRIDE: &str =
    ".envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.RateLimitOverride";

/// The file of the service, and the files that it imports.
pub const FILES: [FileTable; 7] =
    [SERVICE, DESCRIPTOR, UNITS, HEADERS, DURATIONS, WRAPPERS, STRUCTS];

const SERVICE: FileTable = FileTable {
    name: "envoy/service/ratelimit/v3/rls.proto",
    package: "envoy.service.ratelimit.v3",
    imports: &[DESCRIPTOR.name, HEADERS.name, DURATIONS.name, WRAPPERS.name, STRUCTS.name],
    messages: &[
        MessageTable::plain(
            "RateLimitRequest",
            &[
                ("domain", 1, "string"),
                ("descriptors", 2, DESCRIPTORS),
                ("hits_addend", 3, "uint32"),
            ],
        ),
        MessageTable {
            name: "RateLimitResponse",
            fields: &[
                ("overall_code", 1, CODE),
                ("statuses", 2, STATUSES),
                ("response_headers_to_add", 3, "*.envoy.config.core.v3.HeaderValue"),
                ("dynamic_metadata", 6, ".google.protobuf.Struct"),
            ],
            nested: &[
                MessageTable {
                    name: "RateLimit",
                    fields: &[
                        ("requests_per_unit", 1, "uint32"),
                        ("unit", 2, UNIT),
                        ("name", 3, "string"),
                        ("unit_multiplier", 4, UINT32),
                    ],
                    nested: &[],
                    enums: &[(
                        "Unit",
                        &[
                            ("UNKNOWN", 0),
                            ("SECOND", 1),
                            ("MINUTE", 2),
                            ("HOUR", 3),
                            ("DAY", 4),
                            ("WEEK", 7),
                            ("MONTH", 5),
                            ("YEAR", 6),
                        ],
                    )],
                    shape: MessageShape::Plain,
                },
                MessageTable::plain(
                    "DescriptorStatus",
                    &[
                        ("code", 1, CODE),
                        ("current_limit", 2, RATE_LIMIT),
                        ("limit_remaining", 3, "uint32"),
                        ("duration_until_reset", 4, DURATION),
                    ],
                ),
            ],
            enums: &[("Code", &[("UNKNOWN", 0), ("OK", 1), ("OVER_LIMIT", 2)])],
            shape: MessageShape::Plain,
        },
    ],
    enums: &[],
    services: &[ServiceTable {
        name: "RateLimitService",
        methods: &[MethodTable {
            name: "ShouldRateLimit",
            input: ".envoy.service.ratelimit.v3.RateLimitRequest",
            output: ".envoy.service.ratelimit.v3.RateLimitResponse",
            streams_responses: false,
        }],
    }],
};

const DESCRIPTOR: FileTable = FileTable {
    name: "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
    package: "envoy.extensions.common.ratelimit.v3",
    imports: &[UNITS.name, WRAPPERS.name],
    messages: &[MessageTable {
        name: "RateLimitDescriptor",
        fields: &[
            ("entries", 1, ENTRIES),
            ("limit", 2, OVERRIDE),
            ("hits_addend", 3, UINT64),
            ("is_negative_hits", 4, "bool"),
        ],
        nested: &[
            MessageTable::plain("Entry", &[("key", 1, "string"), ("value", 2, "string")]),
            MessageTable::plain(
                "RateLimitOverride",
                &[
                    ("requests_per_unit", 1, "uint32"),
                    ("unit", 2, "#.envoy.type.v3.RateLimitUnit"),
                    ("unit_multiplier", 3, UINT32),
                ],
            ),
        ],
        enums: &[],
        shape: MessageShape::Plain,
    }],
    enums: &[],
    services: &[],
};

const UNITS: FileTable = FileTable {
    name: "envoy/type/v3/ratelimit_unit.proto",
    package: "envoy.type.v3",
    imports: &[],
    messages: &[],
    enums: &[(
        "RateLimitUnit",
        &[
            ("UNKNOWN", 0),
            ("SECOND", 1),
            ("MINUTE", 2),
            ("HOUR", 3),
            ("DAY", 4),
            ("MONTH", 5),
            ("YEAR", 6),
        ],
    )],
    services: &[],
};

const HEADERS: FileTable = FileTable {
    name: "envoy/config/core/v3/base.proto",
    package: "envoy.config.core.v3",
    imports: &[],
    messages: &[MessageTable::plain(
        "HeaderValue",
        &[("key", 1, "string"), ("value", 2, "string")],
    )],
    enums: &[],
    services: &[],
};

const DURATIONS: FileTable = FileTable {
    name: "google/protobuf/duration.proto",
    package: "google.protobuf",
    imports: &[],
    messages: &[MessageTable::plain("Duration", &[("seconds", 1, "int64"), ("nanos", 2, "int32")])],
    enums: &[],
    services: &[],
};

const WRAPPERS: FileTable = FileTable {
    name: "google/protobuf/wrappers.proto",
    package: "google.protobuf",
    imports: &[],
    messages: &[
        MessageTable::plain("UInt64Value", &[("value", 1, "uint64")]),
        MessageTable::plain("UInt32Value", &[("value", 1, "uint32")]),
    ],
    enums: &[],
    services: &[],
};

const STRUCTS: FileTable = FileTable {
    name: "google/protobuf/struct.proto",
    package: "google.protobuf",
    imports: &[],
    messages: &[
        MessageTable {
            name: "Struct",
            fields: &[("fields", 1, "*.google.protobuf.Struct.FieldsEntry")],
            nested: &[MessageTable {
                name: "FieldsEntry",
                fields: &[("key", 1, "string"), ("value", 2, ".google.protobuf.Value")],
                nested: &[],
                enums: &[],
                shape: MessageShape::MapEntry,
            }],
            enums: &[],
            shape: MessageShape::Plain,
        },
        MessageTable {
            name: "Value",
            fields: &[
                ("null_value", 1, "#.google.protobuf.NullValue"),
                ("number_value", 2, "double"),
                ("string_value", 3, "string"),
                ("bool_value", 4, "bool"),
                ("struct_value", 5, ".google.protobuf.Struct"),
                ("list_value", 6, ".google.protobuf.ListValue"),
            ],
            nested: &[],
            enums: &[],
            shape: MessageShape::OneOf("kind"),
        },
        MessageTable::plain("ListValue", &[("values", 1, "*.google.protobuf.Value")]),
    ],
    enums: &[("NullValue", &[("NULL_VALUE", 0)])],
    services: &[],
};
