//! The keys of the configuration as the JSON Schema has them.

use serde_json::{Map, Value};
use tidegate::config;

/// One key that takes a value.
pub(crate) struct Key {
    /// `limits.NAME.quota`, `listen[].address`.
    pub(crate) path: String,
    /// What it takes, in few words.
    pub(crate) values: String,
    /// As a configuration writes it; `None` if there is none.
    pub(crate) default: Option<String>,
    pub(crate) is_required: bool,
    pub(crate) description: String,
    /// The values of an enumeration with their descriptions.
    pub(crate) choices: Vec<(String, String)>,
}

/// A type of value that several keys take.
pub(crate) struct ValueType {
    pub(crate) name: String,
    pub(crate) description: String,
}

/// Definitions whose values need more words than fit into a table: their name in the schema, and in
/// the reference.
const VALUE_TYPES: [(&str, &str); 19] = [
    ("Address", "address"),
    ("Cidr", "network"),
    ("CorsOrigin", "origin"),
    ("Cost", "cost"),
    ("Duration", "duration"),
    ("AdminAddress", "admin address"),
    ("HostHeader", "host header"),
    ("HostName", "host name"),
    ("KeyPart", "key part"),
    ("MatchValue", "match value"),
    ("ListenAddress", "listen address"),
    ("Maximum", "number or off"),
    ("Method", "method"),
    ("RedisUrl", "Redis URL"),
    ("SecretReference", "secret"),
    ("Size", "size"),
    ("Status", "status"),
    ("Target", "target"),
    ("Timeout", "duration or off"),
];

/// The schema's sections, in order of their names, each with its description and keys.
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) keys: Vec<Key>,
}

struct Reader {
    definitions: Map<String, Value>,
}

/// Sections, and the value types that their keys take.
pub(crate) fn read() -> (Vec<Section>, Vec<ValueType>) {
    let schema = config::schema().to_value();
    let definitions = schema["$defs"].as_object().expect("definitions").clone();
    let reader = Reader { definitions };
    let mut top = Section {
        name: "Top level".to_owned(),
        description: "Keys outside of any section.".to_owned(),
        keys: Vec::new(),
    };
    let mut sections = Vec::new();
    for (name, property) in schema["properties"].as_object().expect("properties") {
        let mut keys = Vec::new();
        let is_required = is_required(&schema, name);
        reader.walk(property, name, is_required, property.get("default"), &mut keys);
        if reader.is_section(property) {
            let description = reader.description(property);
            sections.push(Section { name: name.clone(), description, keys });
        } else {
            top.keys.extend(keys);
        }
    }
    sections.insert(0, top);
    (sections, reader.value_types())
}

fn is_required(node: &Value, name: &str) -> bool {
    node["required"].as_array().is_some_and(|names| names.iter().any(|own| own == name))
}

/// The value as a configuration writes it, without quotes.
fn written(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "(empty)".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// The text on one line.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Reader {
    /// Follows references; of `T or null` takes `T`.
    fn resolve<'a>(&'a self, node: &'a Value) -> &'a Value {
        if let Some(name) = definition(node) {
            return self.resolve(&self.definitions[name]);
        }
        let other =
            |choices: &'a Value| choices.as_array()?.iter().find(|one| one["type"] != "null");
        other(&node["anyOf"]).map_or(node, |choice| self.resolve(choice))
    }

    fn is_section(&self, node: &Value) -> bool {
        let node = self.resolve(node);
        let inner = |name: &str| node[name].is_object() && self.is_section(&node[name]);
        node["properties"].is_object() || inner("items") || inner("additionalProperties")
    }

    /// The node's own description, or that of its definition.
    fn description(&self, node: &Value) -> String {
        let own = node["description"].as_str();
        joined(own.or(self.resolve(node)["description"].as_str()).unwrap_or_default())
    }

    /// Adds the keys below `path`. `default` is the value that the section has if it is left out.
    fn walk(
        &self,
        node: &Value,
        path: &str,
        is_required: bool,
        default: Option<&Value>,
        keys: &mut Vec<Key>,
    ) {
        let inner = self.resolve(node);
        if let Some(properties) = inner["properties"].as_object() {
            for (name, property) in properties {
                let own = property.get("default");
                let default = own.or_else(|| default?.get(name));
                let required = self::is_required(inner, name);
                self.walk(property, &format!("{path}.{name}"), required, default, keys);
            }
        } else if self.is_section(inner) && inner["items"].is_object() {
            let first = default.and_then(|list| list.get(0));
            self.walk(&inner["items"], &format!("{path}[]"), is_required, first, keys);
        } else if self.is_section(inner) {
            self.walk(
                &inner["additionalProperties"],
                &format!("{path}.NAME"),
                is_required,
                None,
                keys,
            );
        } else {
            let default = default.filter(|value| !value.is_null()).map(written);
            keys.push(Key {
                path: path.to_owned(),
                values: self.values(node),
                is_required: is_required && default.is_none(),
                default,
                description: self.description(node),
                choices: self.choices(inner),
            });
        }
    }

    /// What a node takes, in few words.
    fn values(&self, node: &Value) -> String {
        if let Some(value_type) = value_type(node) {
            return format!("[{value_type}](#value-types)");
        }
        let is_defined = definition(node).is_some();
        let node = self.resolve(node);
        let choices: Vec<String> = self.choices(node).into_iter().map(|(value, _)| value).collect();
        if !choices.is_empty() {
            return choices.join(", ");
        }
        if node["items"].is_object() {
            return format!("list of {}", self.values(&node["items"]));
        }
        if node["additionalProperties"].is_object() {
            return format!("names with {}", self.values(&node["additionalProperties"]));
        }
        let is = |name: &str| match &node["type"] {
            Value::Array(types) => types.iter().any(|own| own == name),
            own => own == name,
        };
        let bound = |name: &str| node[name].as_u64().map(|bound| bound.to_string());
        match (bound("minimum"), bound("maximum")) {
            _ if is("boolean") => "true, false".to_owned(),
            _ if is("number") => format!("{} to {}", node["minimum"], node["maximum"]),
            (Some(least), Some(most)) if is("integer") => format!("{least} to {most}"),
            (Some(least), None) if is("integer") => format!("whole number from {least}"),
            // A definition that says what it takes.
            _ if is_defined && node["description"].is_string() => self.description(node),
            _ => "text".to_owned(),
        }
    }

    /// The constants of an enumeration.
    fn choices(&self, node: &Value) -> Vec<(String, String)> {
        let choices = node["oneOf"].as_array().into_iter().flatten();
        let constants = choices
            .filter_map(|choice| Some((written(choice.get("const")?), self.description(choice))));
        constants.collect()
    }

    fn value_types(&self) -> Vec<ValueType> {
        let value_types = VALUE_TYPES.iter().map(|(definition, name)| ValueType {
            name: (*name).to_owned(),
            description: joined(
                self.definitions[*definition]["description"].as_str().unwrap_or(""),
            ),
        });
        value_types.collect()
    }
}

/// The name of the definition that a node refers to.
fn definition(node: &Value) -> Option<&str> {
    node["$ref"].as_str()?.rsplit('/').next()
}

/// The name of the value type that a node takes, through `T or null`.
fn value_type(node: &Value) -> Option<&'static str> {
    let name = definition(node);
    if let Some(known) = VALUE_TYPES.iter().find(|(known, _)| Some(*known) == name) {
        return Some(known.1);
    }
    let choices = node["anyOf"].as_array()?;
    choices.iter().find_map(|choice| value_type(choice))
}
