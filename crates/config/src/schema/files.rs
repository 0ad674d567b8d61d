//! Compares the files of the schemas with what the types say, or writes them.

use std::{fs, path::Path};

use schemars::schema_for;
use serde_json::Value;

use super::editor;

const UPDATE: &str = "run UPDATE_DOCS=1 cargo test -p tidegate-config schema";

#[expect(clippy::disallowed_methods, reason = "an input of the test, not of the gateway")]
fn is_update() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some()
}

fn compare(name: &str, schema: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let schema = format!("{schema:#}\n");
    if is_update() {
        fs::write(path, schema).expect("a file that can be written");
        return;
    }
    let file = fs::read_to_string(path).expect("the file");
    for (line, (own, new)) in (1..).zip(file.lines().zip(schema.lines())) {
        assert_eq!(own, new, "crates/config/{name}:{line} differs; {UPDATE}");
    }
    assert_eq!(file.len(), schema.len(), "crates/config/{name} differs; {UPDATE}");
}

#[test]
fn the_files_are_the_schemas_of_the_types() {
    let schema = schema_for!(crate::Config).to_value();
    compare("schema.json", &schema);
    compare("editor_schema.json", &editor::of(schema));
}
