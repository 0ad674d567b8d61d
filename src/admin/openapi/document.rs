//! Makes the `OpenAPI` description from the descriptions of the requests and from the types of
//! their bodies.

use schemars::{Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    operation::{EndpointDescription, Operation, OperationBody, Parameter, RequestBody},
    request_bodies::address_schema,
};
use crate::admin::{
    problem::ProblemDocument,
    token::{Authentication, is_open},
};

/// The description of `endpoints`.
pub(super) fn document(endpoints: &[EndpointDescription], authentication: Authentication) -> Value {
    let mut generators = Generators::new();
    let mut paths = Map::new();
    for endpoint in endpoints {
        let operations = endpoint.operations.iter().map(|operation| {
            let mut described = describe(operation, endpoint.path, &mut generators);
            let errors = common_errors(operation, endpoint.path, authentication);
            add_errors(&mut described, &errors, &mut generators.responses);
            if needs_token(endpoint.path, authentication) {
                described["security"] = json!([{ "token": [] }]);
            }
            (operation.method.to_owned(), described)
        });
        paths.insert(endpoint.path.to_owned(), Value::Object(operations.collect()));
    }
    let mut schemas = generators.requests.take_definitions(true);
    schemas.extend(generators.responses.take_definitions(true));
    let mut components = json!({ "schemas": schemas });
    if authentication == Authentication::Token {
        let description = "The token of `admin.token`.";
        components["securitySchemes"] =
            json!({ "token": { "type": "http", "scheme": "bearer", "description": description } });
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate admin API",
            "summary": "Health, metrics and control of a Tidegate gateway",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": components,
    })
}

/// True if requests of `path` need the token.
fn needs_token(path: &str, authentication: Authentication) -> bool {
    authentication == Authentication::Token && !is_open(path)
}

/// What makes schemas. A member with a default is always in a response, and may be missing in a
/// request.
struct Generators {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
}

impl Generators {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            requests: settings().for_deserialize().into_generator(),
            responses: settings().for_serialize().into_generator(),
        }
    }
}

fn describe(operation: &Operation, path: &str, generators: &mut Generators) -> Value {
    let mut responses = Map::new();
    for reply in &operation.replies {
        let response = json!({ "description": reply.description });
        let response = responses.entry(reply.status.to_string()).or_insert(response);
        if let Some((media, schema)) = content(reply.content, &mut generators.responses) {
            response["content"][media] = json!({ "schema": schema });
        }
    }
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses,
    });
    let parameters: Vec<Value> =
        operation.parameters.iter().map(|own| describe_parameter(own, path)).collect();
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    let body = match operation.body {
        RequestBody::None => None,
        RequestBody::Required(schema) => Some((schema, true)),
        RequestBody::Optional(schema) => Some((schema, false)),
    };
    if let Some((schema, required)) = body {
        let content = json!({ "application/json": { "schema": schema(&mut generators.requests) } });
        described["requestBody"] = json!({ "required": required, "content": content });
    }
    described
}

/// Adds `errors` to an operation's responses, except for statuses that the operation describes
/// itself.
fn add_errors(
    operation: &mut Value,
    errors: &[(u16, &'static str)],
    generator: &mut SchemaGenerator,
) {
    let Some((media, schema)) = content(OperationBody::Problem, generator) else { return };
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for (status, description) in errors {
        let content = json!({ media: { "schema": schema } });
        let response = json!({ "description": description, "content": content });
        responses.entry(status.to_string()).or_insert(response);
    }
}

fn describe_parameter(parameter: &Parameter, path: &str) -> Value {
    let is_path = path.contains(&format!("{{{}}}", parameter.name));
    let mut schema = match parameter.name {
        "client_ip" => address_schema(),
        _ => json!({ "type": "string" }),
    };
    if !parameter.pattern.is_empty() {
        schema["pattern"] = parameter.pattern.into();
    }
    // A limit's key has a value for each of its parts.
    if parameter.name == "key" && !is_path {
        schema = json!({ "type": "array", "items": schema });
    }
    json!({
        "name": parameter.name,
        "in": if is_path { "path" } else { "query" },
        "required": is_path,
        "description": parameter.description,
        "schema": schema,
    })
}

/// The errors that are not specific to an operation.
fn common_errors(
    operation: &Operation,
    path: &str,
    authentication: Authentication,
) -> Vec<(u16, &'static str)> {
    let mut errors = vec![(421, "The `Host` is not one that the admin listener accepts")];
    if needs_token(path, authentication) {
        errors.push((401, "The token is missing or wrong"));
    }
    if operation.method != "get" {
        errors.push((403, "A web page of another origin sent the request"));
        errors.push((408, "The request's body did not arrive in time"));
        errors.push((413, "The request's body is too long"));
    }
    errors
}

/// A body's media type and schema; `None` without a body.
fn content(
    content: OperationBody,
    generator: &mut SchemaGenerator,
) -> Option<(&'static str, Schema)> {
    let text = || schemars::json_schema!({ "type": "string" });
    match content {
        OperationBody::None => None,
        OperationBody::Text(media) => Some((media, text())),
        OperationBody::Json(schema) => Some(("application/json", schema(generator))),
        OperationBody::Problem => {
            Some(("application/problem+json", generator.subschema_for::<ProblemDocument<'_>>()))
        }
    }
}
