//! Descriptors of services for clients such as grpcurl: tables in the source, as the messages of
//! `google/protobuf/descriptor.proto`.

use prost::Message;

/// A file of definitions.
#[derive(Clone, Copy, Debug)]
pub struct FileTable {
    /// Its path, by which other files import it.
    pub name: &'static str,
    /// Its package.
    pub package: &'static str,
    /// The paths of the files that it imports.
    pub imports: &'static [&'static str],
    /// Its messages.
    pub messages: &'static [MessageTable],
    /// Its enums.
    pub enums: &'static [EnumTable],
    /// Its services.
    pub services: &'static [ServiceTable],
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct MessageTable {
    /// Its name.
    pub name: &'static str,
    /// Its fields.
    pub fields: &'static [FieldTable],
    /// The messages within it.
    pub nested: &'static [MessageTable],
    /// The enums within it.
    pub enums: &'static [EnumTable],
    /// What it is.
    pub shape: MessageShape,
}

/// What a message is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MessageShape {
    /// A message with independent fields.
    Plain,
    /// An entry of a map.
    MapEntry,
    /// A message of which one field is set, a oneof of this name.
    OneOf(&'static str),
}

/// A field: its name, its number, and its type: a scalar such as `string`, `.package.Message` or
/// `#.package.Enum`, after `*` if it is repeated.
pub type FieldTable = (&'static str, i32, &'static str);

/// An enum: its name, and its values.
pub type EnumTable = (&'static str, &'static [(&'static str, i32)]);

/// A service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceTable {
    /// Its name.
    pub name: &'static str,
    /// Its methods.
    pub methods: &'static [MethodTable],
}

/// A method.
#[derive(Clone, Copy, Debug)]
pub struct MethodTable {
    /// Its name.
    pub name: &'static str,
    /// The type of the request.
    pub input: &'static str,
    /// The type of the response.
    pub output: &'static str,
    /// True if it has several responses.
    pub streams_responses: bool,
}

impl MessageTable {
    /// A message with independent fields, and nothing within it.
    pub const fn plain(name: &'static str, fields: &'static [FieldTable]) -> Self {
        Self { name, fields, nested: &[], enums: &[], shape: MessageShape::Plain }
    }
}

impl FileTable {
    /// The encoded `FileDescriptorProto`.
    pub fn encode(&self) -> Vec<u8> {
        let file = FileDescriptor {
            name: self.name.to_owned(),
            package: self.package.to_owned(),
            dependency: self.imports.iter().map(|name| (*name).to_owned()).collect(),
            message_type: self.messages.iter().map(message).collect(),
            enum_type: self.enums.iter().map(enumeration).collect(),
            service: self.services.iter().map(service).collect(),
            syntax: "proto3".to_owned(),
        };
        file.encode_to_vec()
    }

    /// True if the file defines the message, enum, service or method of this full name.
    pub fn defines(&self, symbol: &str) -> bool {
        let inside = symbol.strip_prefix(self.package).and_then(|rest| rest.strip_prefix('.'));
        let Some(inside) = inside else { return false };
        let is_enum = |own: &EnumTable| own.0 == inside;
        self.messages.iter().any(|message| defines(message, inside))
            || self.enums.iter().any(is_enum)
            || self.services.iter().any(|service| {
                let method = inside.strip_prefix(service.name);
                let method = method.and_then(|rest| rest.strip_prefix('.'));
                inside == service.name || service.methods.iter().any(|own| Some(own.name) == method)
            })
    }
}

fn defines(table: &MessageTable, name: &str) -> bool {
    let Some(rest) = name.strip_prefix(table.name) else { return false };
    let Some(rest) = rest.strip_prefix('.') else { return rest.is_empty() };
    table.nested.iter().any(|nested| defines(nested, rest))
        || table.enums.iter().any(|(own, _)| *own == rest)
}

#[derive(Clone, PartialEq, Message)]
struct FileDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    package: String,
    #[prost(string, repeated, tag = "3")]
    dependency: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    message_type: Vec<MessageDescriptor>,
    #[prost(message, repeated, tag = "5")]
    enum_type: Vec<EnumDescriptor>,
    #[prost(message, repeated, tag = "6")]
    service: Vec<ServiceDescriptor>,
    #[prost(string, tag = "12")]
    syntax: String,
}

#[derive(Clone, PartialEq, Message)]
struct MessageDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    field: Vec<FieldDescriptor>,
    #[prost(message, repeated, tag = "3")]
    nested_type: Vec<MessageDescriptor>,
    #[prost(message, repeated, tag = "4")]
    enum_type: Vec<EnumDescriptor>,
    #[prost(message, optional, tag = "7")]
    options: Option<MessageOptions>,
    #[prost(message, repeated, tag = "8")]
    oneof_decl: Vec<OneOfDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct FieldDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, tag = "3")]
    number: i32,
    #[prost(int32, tag = "4")]
    label: i32,
    #[prost(int32, tag = "5")]
    r#type: i32,
    #[prost(string, optional, tag = "6")]
    type_name: Option<String>,
    #[prost(int32, optional, tag = "9")]
    oneof_index: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct MessageOptions {
    #[prost(bool, tag = "7")]
    map_entry: bool,
}

#[derive(Clone, PartialEq, Message)]
struct OneOfDescriptor {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct EnumDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    value: Vec<EnumValueDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct EnumValueDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, optional, tag = "2")]
    number: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    method: Vec<MethodDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct MethodDescriptor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    input_type: String,
    #[prost(string, tag = "3")]
    output_type: String,
    #[prost(bool, tag = "6")]
    server_streaming: bool,
}

fn message(table: &MessageTable) -> MessageDescriptor {
    let oneof = match table.shape {
        MessageShape::OneOf(name) => Some(name),
        MessageShape::Plain | MessageShape::MapEntry => None,
    };
    let is_entry = table.shape == MessageShape::MapEntry;
    MessageDescriptor {
        name: table.name.to_owned(),
        field: table.fields.iter().map(|own| field(own, oneof.map(|_| 0))).collect(),
        nested_type: table.nested.iter().map(message).collect(),
        enum_type: table.enums.iter().map(enumeration).collect(),
        options: is_entry.then_some(MessageOptions { map_entry: true }),
        oneof_decl: oneof
            .map(|name| OneOfDescriptor { name: name.to_owned() })
            .into_iter()
            .collect(),
    }
}

/// Labels of fields.
const OPTIONAL: i32 = 1;
const REPEATED: i32 = 3;

fn field(&(name, number, written): &FieldTable, oneof_index: Option<i32>) -> FieldDescriptor {
    let (label, one) = match written.strip_prefix('*') {
        Some(one) => (REPEATED, one),
        None => (OPTIONAL, written),
    };
    let (r#type, type_name) = match one {
        "double" => (1, None),
        "int64" => (3, None),
        "int32" => (5, None),
        "bool" => (8, None),
        "string" => (9, None),
        "bytes" => (12, None),
        "uint32" => (13, None),
        "uint64" => (4, None),
        _ => match one.strip_prefix('#') {
            Some(name) => (14, Some(name.to_owned())),
            None => (11, Some(one.to_owned())),
        },
    };
    FieldDescriptor { name: name.to_owned(), number, label, r#type, type_name, oneof_index }
}

fn enumeration(&(name, values): &EnumTable) -> EnumDescriptor {
    let value = values.iter().map(|(name, number)| EnumValueDescriptor {
        name: (*name).to_owned(),
        number: Some(*number),
    });
    EnumDescriptor { name: name.to_owned(), value: value.collect() }
}

fn service(table: &ServiceTable) -> ServiceDescriptor {
    let method = table.methods.iter().map(|own| MethodDescriptor {
        name: own.name.to_owned(),
        input_type: own.input.to_owned(),
        output_type: own.output.to_owned(),
        server_streaming: own.streams_responses,
    });
    ServiceDescriptor { name: table.name.to_owned(), method: method.collect() }
}
