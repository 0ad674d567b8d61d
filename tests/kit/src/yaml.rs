//! Configurations as literals in a test: indented like the code around them, with addresses filled
//! in by name.

use std::fmt::Display;

/// The configuration `yaml`, without its indentation, in which each `{name}` of `values` is
/// replaced by its value. Other braces, as in `{*rest}`, stay.
///
/// Panics if a name does not occur.
pub fn fill<const N: usize>(yaml: &str, values: [(&str, impl Display); N]) -> String {
    let mut text = without_indentation(yaml);
    for (name, value) in values {
        let placeholder = format!("{{{name}}}");
        assert!(text.contains(&placeholder), "no {placeholder} in:{yaml}");
        text = text.replace(&placeholder, &value.to_string());
    }
    text
}

/// `yaml` without the white space that begins each of its lines. Starts with the first line that
/// has a key.
pub fn without_indentation(yaml: &str) -> String {
    let yaml = yaml.trim_start_matches('\n').trim_end_matches(' ');
    let lines = yaml.lines().filter(|line| !line.trim().is_empty());
    let width = lines.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    let mut text = String::with_capacity(yaml.len());
    for line in yaml.split_inclusive('\n') {
        text.push_str(line.get(width..).unwrap_or("\n"));
    }
    text
}
