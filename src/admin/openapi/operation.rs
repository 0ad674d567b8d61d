//! The types that describe the admin API's requests.

use schemars::{JsonSchema, Schema, SchemaGenerator};

/// A path and its requests.
pub(super) struct EndpointDescription {
    pub(super) path: &'static str,
    pub(super) operations: Vec<Operation>,
}

/// A request: a method of an endpoint.
pub(super) struct Operation {
    /// In lower case.
    pub(super) method: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: RequestBody,
    pub(super) replies: Vec<OperationReply>,
}

/// A parameter of the path, if the path names it, or of the query.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    /// The regular expression of the value; empty: any text.
    pub(super) pattern: &'static str,
}

/// The body of a request.
#[derive(Clone, Copy)]
pub(super) enum RequestBody {
    None,
    /// JSON of this schema.
    Required(fn(&mut SchemaGenerator) -> Schema),
    /// The same, or no body.
    Optional(fn(&mut SchemaGenerator) -> Schema),
}

/// A response.
pub(super) struct OperationReply {
    pub(super) status: u16,
    pub(super) description: &'static str,
    pub(super) content: OperationBody,
}

/// The body of a response.
#[derive(Clone, Copy)]
pub(super) enum OperationBody {
    None,
    /// Text of this media type.
    Text(&'static str),
    /// JSON of this schema.
    Json(fn(&mut SchemaGenerator) -> Schema),
    /// A problem document.
    Problem,
}

impl Operation {
    pub(super) fn new(method: &'static str, id: &'static str, summary: &'static str) -> Self {
        let (parameters, replies) = (Vec::new(), Vec::new());
        Self { method, id, summary, parameters, body: RequestBody::None, replies }
    }

    pub(super) fn get(id: &'static str, summary: &'static str) -> Self {
        Self::new("get", id, summary)
    }

    pub(super) fn body(mut self, schema: fn(&mut SchemaGenerator) -> Schema) -> Self {
        self.body = RequestBody::Required(schema);
        self
    }

    pub(super) fn optional_body(mut self, schema: fn(&mut SchemaGenerator) -> Schema) -> Self {
        self.body = RequestBody::Optional(schema);
        self
    }

    pub(super) fn parameter(
        mut self,
        name: &'static str,
        description: &'static str,
        pattern: &'static str,
    ) -> Self {
        self.parameters.push(Parameter { name, description, pattern });
        self
    }

    pub(super) fn reply(
        mut self,
        status: u16,
        description: &'static str,
        content: OperationBody,
    ) -> Self {
        self.replies.push(OperationReply { status, description, content });
        self
    }

    pub(super) fn json(
        self,
        status: u16,
        description: &'static str,
        schema: fn(&mut SchemaGenerator) -> Schema,
    ) -> Self {
        self.reply(status, description, OperationBody::Json(schema))
    }

    pub(super) fn error(self, status: u16, description: &'static str) -> Self {
        self.reply(status, description, OperationBody::Problem)
    }
}

/// The schema of a type, as a reference to the description's components.
pub(super) fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}
