//! `GET /api/openapi.json`: the `OpenAPI` 3.1 description. A test makes its file from the
//! descriptions of the requests and from the types of their bodies.

#[cfg(test)]
mod document;
#[cfg(test)]
mod operation;
#[cfg(test)]
mod operations;
#[cfg(test)]
mod request_bodies;
#[cfg(test)]
mod tests;

use axum::body::Bytes;
use serde_json::{Map, Value};

use super::{endpoints::AdminEndpoint, token::Authentication};

/// The description of an API whose requests need the token.
const FILE: &str = include_str!("openapi.json");

/// Parses the file.
pub(super) fn read() -> Value {
    serde_json::from_str(FILE).expect("a test compares the file")
}

/// The text of `description`, the content of the file, for this authentication.
pub(super) fn text(description: &Value, authentication: Authentication) -> Bytes {
    match authentication {
        Authentication::Token => Bytes::from_static(FILE.as_bytes()),
        Authentication::None => Bytes::from(without_token(description.clone()).to_string()),
    }
}

/// Removes what the description has only because requests need the token.
fn without_token(mut description: Value) -> Value {
    let paths = description["paths"].as_object_mut().into_iter().flat_map(Map::values_mut);
    for path in paths {
        for operation in path.as_object_mut().into_iter().flat_map(Map::values_mut) {
            remove(operation, "security");
            // An operation has this response only for the token.
            remove(&mut operation["responses"], "401");
        }
    }
    remove(&mut description["components"], "securitySchemes");
    description
}

fn remove(object: &mut Value, member: &str) {
    if let Some(members) = object.as_object_mut() {
        members.remove(member);
    }
}

/// The requests of `endpoints`, one a line, for the errors of unknown paths.
pub(super) fn index(description: &Value, endpoints: &[AdminEndpoint]) -> String {
    let lines = endpoints.iter().filter(|endpoint| !endpoint.path.contains('.')).map(|endpoint| {
        let operations = description["paths"][endpoint.path].as_object();
        let methods = operations.into_iter().flat_map(|all| all.keys().rev());
        let methods: Vec<String> = methods.map(|method| method.to_ascii_uppercase()).collect();
        format!("{} {}", methods.join(", "), endpoint.path)
    });
    lines.collect::<Vec<_>>().join("; ")
}
