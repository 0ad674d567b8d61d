//! The JSON Schema for editors: the configuration's schema, in which every value may also be text
//! with references to environment variables.

use serde_json::{Map, Value, json};

use super::strict::tighten;

/// A text with a reference.
const REFERENCE: &str = "\\$\\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\\}";

/// The schema for editors that is made of the configuration's.
pub(super) fn of(mut schema: Value) -> Value {
    tighten(&mut schema);
    allow_references(&mut schema);
    for (name, number) in [
        ("RetryCondition", json!({"enum": [502, 503, 504]})),
        ("StatusRange", json!({"type": "integer", "minimum": 200, "maximum": 599})),
    ] {
        if let Some(choices) = schema["$defs"][name]["anyOf"].as_array_mut() {
            choices.push(number);
        }
    }
    schema
}

/// Lets every scalar in `schema` that accepts only certain values also accept text with a
/// reference.
fn allow_references(schema: &mut Value) {
    let Value::Object(keywords) = schema else { return };
    if is_restricted_scalar(keywords) {
        let annotations = ["description", "default", "examples", "x-minimum", "x-maximum"];
        let (kept, own): (Map<_, _>, Map<_, _>) = std::mem::take(keywords)
            .into_iter()
            .partition(|(key, _)| annotations.contains(&&**key));
        *keywords = kept;
        let reference = json!({"type": "string", "pattern": REFERENCE});
        keywords.insert("anyOf".to_owned(), json!([own, reference]));
        return;
    }
    for (keyword, value) in keywords.iter_mut() {
        match (keyword.as_str(), value) {
            ("properties" | "$defs", Value::Object(schemas)) => {
                schemas.values_mut().for_each(allow_references);
            }
            ("anyOf" | "oneOf", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(allow_references);
            }
            ("items" | "additionalProperties", schema) => allow_references(schema),
            _ => {}
        }
    }
}

/// True if the schema accepts only numbers, booleans, and text of a certain form.
fn is_restricted_scalar(keywords: &Map<String, Value>) -> bool {
    let choices = keywords.get("oneOf").and_then(Value::as_array);
    if let Some(choices) = choices {
        return choices.iter().all(|choice| choice.as_object().is_some_and(is_restricted_scalar));
    }
    let types: Vec<&str> = match keywords.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is_restricted = ["pattern", "enum", "const"].iter().any(|key| keywords.contains_key(*key));
    let is_scalar = |name: &&str| match *name {
        "integer" | "number" | "boolean" | "null" => true,
        "string" => is_restricted,
        _ => false,
    };
    keywords.contains_key("const") || !types.is_empty() && types.iter().all(is_scalar)
}

mod tests {
    use super::*;

    fn editor_schema() -> Value {
        serde_json::from_str(crate::editor_schema()).expect("JSON")
    }

    #[test]
    fn every_restricted_value_may_be_a_reference() {
        let schema = editor_schema();
        let reference = json!({"type": "string", "pattern": REFERENCE});
        let definition = |name: &str| &schema["$defs"][name];
        for property in [
            &schema["properties"]["workers"],
            definition("Duration"),
            &definition("CostConfig")["anyOf"][0],
            definition("AlgorithmConfig"),
            &definition("LimitConfig")["properties"]["quota"],
            &definition("LimitConfig")["properties"]["max_cost"],
            &definition("LimitConfig")["properties"]["enforce"],
            &definition("RouteConfig")["properties"]["name"],
        ] {
            assert_eq!(property["anyOf"][1], reference, "{property:#}");
        }
        assert_eq!(definition("StatusRange")["anyOf"][2]["minimum"], 200);
        assert_eq!(definition("RetryCondition")["anyOf"][2]["enum"][0], 502);
        // A value that accepts any text already accepts references. A description stays where
        // editors look for it.
        assert_eq!(definition("UpstreamTls")["properties"]["name"]["anyOf"], Value::Null);
        assert!(definition("LimitConfig")["properties"]["quota"]["description"].is_string());
        assert_eq!(definition("LimitConfig")["properties"]["quota"]["anyOf"][0]["minimum"], 1);
        assert_eq!(definition("LimitConfig")["type"], "object");
        assert_eq!(
            definition("WeightedTargetConfig")["oneOf"][1]["properties"]["weight"]["anyOf"][1],
            reference
        );
    }

    fn faults(yaml: &str) -> Vec<String> {
        let validator = jsonschema::validator_for(&editor_schema()).expect("a schema");
        let config: Value = serde_yaml::from_str(yaml).expect("YAML");
        let faults = validator.iter_errors(&config);
        faults.map(|fault| format!("{}: {fault}", fault.instance_path())).collect()
    }

    #[test]
    fn configurations_that_load_are_valid() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut paths = vec![root.join("config/tidegate.yaml"), root.join("src/cli/init.yaml")];
        let examples = std::fs::read_dir(root.join("config/examples")).expect("a folder");
        paths.extend(examples.map(|entry| entry.expect("an entry").path()));
        assert!(paths.len() > 15);
        for path in paths {
            let yaml = std::fs::read_to_string(&path).expect("a file");
            assert_eq!(faults(&yaml), [""; 0], "{}", path.display());
        }
        let references = "
upstreams: {a: {targets: ['http://${H}:1', '${T}']}}
listen: [{address: '${A}'}]
workers: '${W}'
limits:
  l: '${R:-1/1s}'
  m: {quota: '${Q}', window: '${W}', cost: '${C}', algorithm: '${X}', enforce: '${E}'}
routes: [{name: '${N}', upstream: '${U}', allow: ['${NET}']}]";
        assert_eq!(faults(references), [""; 0]);
    }

    const ROUTES: &str = "routes: [{name: r, upstream: a}]\n";

    #[test]
    fn configurations_with_faults_are_invalid() {
        for fault in [
            "limits: {l: 100/m}",
            "workers: many",
            "listen: [{address: x}]",
            "limits: {m: {quota: '5', window: 1s}}",
            "routes: [{nme: a}]",
        ] {
            let yaml = format!("upstreams: {{a: {{respond: {{}}}}}}\n{fault}\n");
            let routes = if fault.starts_with("routes") { "" } else { ROUTES };
            assert_ne!(faults(&(yaml + routes)), [""; 0], "{fault}");
        }
        assert_eq!(faults(&format!("upstreams: {{a: {{respond: {{}}}}}}\n{ROUTES}")), [""; 0]);
    }
}
