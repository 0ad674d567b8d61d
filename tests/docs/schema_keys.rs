//! The keys of the configuration as the JSON Schema has them.

use serde_json::{Map, Value, json};
use tidegate::config;

use crate::links::anchor;

/// One key of a section.
pub(crate) struct Key {
    /// Its name in the section: `quota`.
    pub(crate) name: String,
    /// What it takes, in few words.
    pub(crate) values: String,
    /// What applies without it; `None` if the section needs the key.
    pub(crate) default: Option<String>,
    /// True if the section needs the key.
    pub(crate) is_required: bool,
    /// What it means, without its default.
    pub(crate) description: String,
    /// The values of an enumeration with their descriptions.
    pub(crate) choices: Vec<(String, String)>,
    /// The anchor of the section that it is.
    pub(crate) section: Option<String>,
}

/// A type of value that several keys take.
pub(crate) struct ValueType {
    pub(crate) name: String,
    pub(crate) description: String,
}

/// Definitions whose values need more words than fit into a table: their name in the schema, and in
/// the reference.
const VALUE_TYPES: [(&str, &str); 24] = [
    ("ActualConfig", "actual cost"),
    ("Address", "address"),
    ("Cidr", "network"),
    ("CorsOrigin", "origin"),
    ("CostConfig", "cost"),
    ("DomainLimitConfig", "domain limit"),
    ("Duration", "duration"),
    ("EstimateConfig", "estimate"),
    ("AdminAddress", "admin address"),
    ("HostHeader", "host header"),
    ("HostName", "host name"),
    ("KeyPart", "key part"),
    ("MatchValue", "match value"),
    ("ListenAddress", "listen address"),
    ("Maximum", "number or off"),
    ("Method", "method"),
    ("MissingConfig", "missing cost"),
    ("RedisUrl", "Redis URL"),
    ("SecretReference", "secret"),
    ("Size", "size"),
    ("Status", "status"),
    ("TargetUrl", "target"),
    ("TimeoutConfig", "duration or off"),
    ("WeightedTargetConfig", "weighted target"),
];

/// Keys that stand beside each other.
pub(crate) struct Section {
    /// `limits.NAME`, `listen[].tls`; empty for the keys outside of any section.
    pub(crate) path: String,
    pub(crate) description: String,
    pub(crate) keys: Vec<Key>,
}

impl Section {
    /// The whole name of one of its keys, as links name it: without `[]`.
    pub(crate) fn anchor(&self, key: &Key) -> String {
        format!("{}.{}", self.path, key.name).replace("[]", "").trim_start_matches('.').to_owned()
    }
}

struct Reader {
    definitions: Map<String, Value>,
    sections: Vec<Section>,
}

/// Sections, each before those within it, and the value types that their keys take.
pub(crate) fn read() -> (Vec<Section>, Vec<ValueType>) {
    let schema = config::schema();
    let definitions = schema["$defs"].as_object().expect("definitions").clone();
    let mut reader = Reader { definitions, sections: Vec::new() };
    let root = Section {
        path: String::new(),
        description: "The sections of a configuration, and the keys outside of any section."
            .to_owned(),
        keys: Vec::new(),
    };
    reader.walk(schema, root, None);
    let types = reader.value_types();
    (reader.sections, types)
}

fn is_required(node: &Value, name: &str) -> bool {
    node["required"].as_array().is_some_and(|names| names.iter().any(|own| own == name))
}

/// True if the property is left out by default: it may be null.
fn is_optional(property: &Value) -> bool {
    let choices = property["anyOf"].as_array();
    choices.is_some_and(|choices| choices.iter().any(|choice| choice["type"] == "null"))
}

fn own_default(property: &Value) -> Option<&Value> {
    property.get("default").filter(|value| !value.is_null())
}

/// The heading of a section.
pub(crate) fn heading(path: &str) -> String {
    if path.is_empty() { "Top level".to_owned() } else { path.to_owned() }
}

/// The default that the end of a description names, and the text before it.
fn split_default(description: &str) -> (Option<String>, String) {
    match description.split_once("Default: ") {
        Some((meaning, default)) => {
            (Some(default.trim_end_matches('.').to_owned()), meaning.trim_end().to_owned())
        }
        None => (None, description.to_owned()),
    }
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

    /// Adds a section with the keys of the object `node`, and those within it. `default` is the
    /// value that the section has if it is left out.
    fn walk(&mut self, node: &Value, mut section: Section, default: Option<&Value>) {
        let mut inner = Vec::new();
        for (name, property) in node["properties"].as_object().expect("an object") {
            let own = property.get("default").or_else(|| default?.get(name)).cloned();
            let description = self.description(property);
            let mut key = Key {
                name: name.clone(),
                values: String::new(),
                default: None,
                is_required: is_required(node, name) && own_default(property).is_none(),
                description: String::new(),
                choices: Vec::new(),
                section: None,
            };
            let (written, meaning) = split_default(&description);
            key.description = meaning;
            if self.is_section(property) {
                let path = format!("{}.{name}", section.path).trim_start_matches('.').to_owned();
                let (path, node, first) = self.unwrap(property, path, own.as_ref());
                key.section = Some(anchor(&heading(&path)));
                key.values = match self.resolve(property) {
                    node if node["properties"].is_object() => "section".to_owned(),
                    node if node["items"].is_object() => "list of sections".to_owned(),
                    _ => "sections by name".to_owned(),
                };
                let is_empty = own.is_some_and(|own| own == json!([]) || own == json!({}));
                let is_none = is_optional(property) || is_empty;
                let unwritten = if is_none { "none" } else { "the defaults of its keys" };
                key.default = Some(written.unwrap_or_else(|| unwritten.to_owned()));
                inner.push((node, Section { path, description, keys: Vec::new() }, first));
            } else {
                let own = own.filter(|value| !value.is_null());
                key.values = self.values(property);
                key.choices = self.choices(self.resolve(property));
                key.default = written.or_else(|| Some(format!("`{}`", self::written(&own?))));
            }
            key.default = key.default.filter(|_| !key.is_required);
            section.keys.push(key);
        }
        self.sections.push(section);
        for (node, section, default) in inner {
            self.walk(&node, section, default.as_ref());
        }
    }

    /// The object that a list, a map or an option has, its path, and its default.
    fn unwrap(
        &self,
        node: &Value,
        path: String,
        default: Option<&Value>,
    ) -> (String, Value, Option<Value>) {
        let node = self.resolve(node);
        if node["properties"].is_object() {
            (path, node.clone(), default.cloned())
        } else if node["items"].is_object() {
            let first = default.and_then(|list| list.get(0)).cloned();
            self.unwrap(&node["items"], format!("{path}[]"), first.as_ref())
        } else {
            self.unwrap(&node["additionalProperties"], format!("{path}.NAME"), None)
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
            return format!("names, each with {}", self.values(&node["additionalProperties"]));
        }
        let is = |name: &str| match &node["type"] {
            Value::Array(types) => types.iter().any(|own| own == name),
            own => own == name,
        };
        let bound = |name: &str| node[name].as_u64().map(|bound| bound.to_string());
        match (bound("minimum"), bound("maximum")) {
            _ if is("boolean") => "true, false".to_owned(),
            _ if is("number") => {
                format!("{} to {}", number(&node["minimum"]), number(&node["maximum"]))
            }
            (Some(least), Some(most)) if is("integer") => format!("{least} to {most}"),
            (Some(least), None) if is("integer") => format!("whole number from {least}"),
            // A definition that says what it takes.
            _ if is_defined && node["description"].is_string() => self.description(node),
            _ => "text".to_owned(),
        }
    }

    /// The constants of an enumeration, with their descriptions if they have some.
    fn choices(&self, node: &Value) -> Vec<(String, String)> {
        let plain = node["enum"].as_array().into_iter().flatten();
        let plain = plain.map(|value| (written(value), String::new()));
        let choices = node["oneOf"].as_array().into_iter().flatten();
        let constants = choices
            .filter_map(|choice| Some((written(choice.get("const")?), self.description(choice))));
        plain.chain(constants).collect()
    }

    fn value_types(&self) -> Vec<ValueType> {
        let value_types = VALUE_TYPES.iter().map(|(definition, name)| ValueType {
            name: (*name).to_owned(),
            description: phrase(&joined(
                self.definitions[*definition]["description"].as_str().unwrap_or(""),
            )),
        });
        value_types.collect()
    }
}

/// A sentence as a phrase: without its capital and its full stop.
fn phrase(text: &str) -> String {
    match text.strip_suffix('.').filter(|text| text.starts_with("The ")) {
        Some(text) => format!("the{}", &text[3..]),
        None => text.to_owned(),
    }
}

/// A bound without an exponent or a useless fraction.
fn number(value: &Value) -> String {
    value.as_f64().map_or_else(String::new, |number| number.to_string())
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
