//! `GET /api/config`: the current configuration, with its defaults and without its secrets.

use std::borrow::Cow;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::Value;

use super::{AdminContext, problem::problem};
use crate::{
    config::ConfigSource,
    sensitive::{MASK, Role, Step, mask_forms, mask_url, shows_scalar},
};

/// The configuration in force.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ConfigView {
    /// Its generation: 1 at the start, 1 more after each reload.
    generation: u64,
    /// The configuration with its defaults, in the format of the file, which `tidegate schema`
    /// describes. Credentials are replaced with `***`, the values of environment variables with
    /// `${NAME}`.
    config: Value,
}

/// Shows the current configuration.
pub(super) async fn show(State(context): State<AdminContext>) -> Response {
    let (generation, loaded) = context.reloader.live_config();
    let Ok(mut config) = serde_json::to_value(&loaded.config) else {
        let detail = "the configuration cannot be shown; expected one that is valid as JSON";
        return problem(StatusCode::INTERNAL_SERVER_ERROR, detail, &[]);
    };
    mask_variables(&mut config, &loaded.source);
    let config = mask(&config, &mut Vec::new());
    ([(header::CACHE_CONTROL, "no-store")], Json(ConfigView { generation, config })).into_response()
}

/// Shows `${NAME}` instead of the values of environment variables in texts.
fn mask_variables(config: &mut Value, source: &ConfigSource) {
    match config {
        Value::Object(object) => {
            object.values_mut().for_each(|value| mask_variables(value, source));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| mask_variables(value, source)),
        Value::String(text) => {
            if let Cow::Owned(masked) = source.mask_values(text) {
                *text = masked;
            }
        }
        _ => {}
    }
}

/// Masks possible credentials: whatever a fault would not quote at its place, and the sensitive
/// parts of URLs. `path` leads to the value. Redis URLs are serialized without their credentials,
/// and secrets as references.
fn mask<'c>(config: &'c Value, path: &mut Vec<Step<'c>>) -> Value {
    match config {
        Value::Object(object) => {
            let members = object.iter().map(|(name, value)| {
                path.push(Step::Member(name));
                let masked = mask(value, path);
                path.pop();
                (mask_forms(name).into_owned(), masked)
            });
            Value::Object(members.collect())
        }
        Value::Array(values) => {
            path.push(Step::Item);
            let masked = values.iter().map(|value| mask(value, path)).collect();
            path.pop();
            Value::Array(masked)
        }
        Value::String(text) if !shows_scalar(path, Role::Value, text) => MASK.into(),
        Value::String(text) => mask_forms(&mask_url(text)).into(),
        _ => config.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn credentials_are_masked_wherever_they_are() {
        let config = json!({
            "consumers": {"entries": [{
                "name": "kept-3",
                "keys": [{"id": "kept-4", "sha256": "hush-12"}],
                "password": "hush-13",
            }]},
            "admin": {"token": "env:KEPT_5"},
            "rate_limit_service": {"domains": {"d": {"limits": [{"match": {"api_key": "hush-14"}}]}}},
            "headers": {"x_ratelimit": true, "standard": "off"},
            "limits": {"a": {"tiers": [
                {"match": {"part": "header:x-api-key", "values": ["hush-1", "hush-2"]}, "quota": 5}
            ]}},
            "routes": [{
                "match": {"headers": {"X-Api-Key": "hush-3", "x-plan": "gold"}, "query": {"access_token": "hush-4"}},
                "headers": {
                    "request": {"set": {"Authorization": "Bearer hush-5", "x-tier": "hush-15"}, "add": {"x-ip": "{client_ip}"}, "remove": []},
                    "response": {"set": {"Cache-Control": "kept-6"}, "add": {"Set-Cookie": "s=hush-6"}, "remove": []},
                },
            }, {
                "headers": {"request": {"replace": {
                    "x-api-key": {"pattern": "hush-16", "with": "hush-17"},
                    "x-access": {"pattern": "^Bearer hush-18", "with": "hush-19"},
                    "accept-language": {"pattern": "kept-7", "with": "kept-8"},
                }}},
            }, {
                "headers": {"request": {"set": {"x-upstream-pass": "hush-7", "x-access": "bearer hush-8"}}},
                "redirect": {"to": "https://me:hush-9@example.com/a@b?token=hush-10&x=kept-1&sig=hush-11"},
                "rewrite": "/kept-2?x=1",
            }],
        });
        let text = mask(&config, &mut Vec::new()).to_string();
        assert!(!text.contains("hush"), "{text}");
        assert_eq!(text.matches(MASK).count(), 19, "{text}");
        for kept in [
            "/kept-2?x=1",
            "@example.com/a@b?",
            "kept-1",
            "gold",
            "kept-3",
            "kept-4",
            "env:KEPT_5",
            "kept-6",
            "kept-7",
            "kept-8",
            "{client_ip}",
            "\"quota\":5",
            "header:x-api-key",
            "off",
        ] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
    }
}
