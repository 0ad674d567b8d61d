//! `tidegate init`: writes a commented configuration, and its JSON Schema for completion in
//! editors.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::config_file::DEFAULT;
use super::{Exit, exit_after_write, print_error};
use crate::config;

/// The configuration. Its first line names [`SCHEMA`] in the same folder.
const CONFIGURATION: &str = include_str!("init.yaml");
const SCHEMA: &str = "tidegate.schema.json";

/// Arguments of `init`.
#[derive(clap::Args, Debug)]
pub(super) struct InitArgs {
    /// The file to write.
    #[arg(value_name = "FILE", default_value = DEFAULT)]
    file: PathBuf,
}

/// Writes the configuration and its schema, unless one of them exists.
pub(super) fn run(arguments: &InitArgs, out: &mut dyn Write) -> Exit {
    let file = &*arguments.file;
    if let Some(expected) = other_form(file) {
        let file = file.display();
        return print_error(&format!(
            "tidegate: {file}: a configuration is written as YAML, expected {expected}"
        ));
    }
    let schema = file.with_file_name(SCHEMA);
    match write_both(file, &schema) {
        Ok(()) => {
            let (file, schema) = (file.display(), schema.display());
            let written = writeln!(
                out,
                "{file}: a configuration, to be edited\n{schema}: its schema, for completion in editors\n\n  \
                 tidegate check {file}   prints what it does, or what is wrong\n  \
                 tidegate serve {file}   runs the gateway"
            );
            exit_after_write(written, Exit::Ok)
        }
        Err((path, error)) if error.kind() == io::ErrorKind::AlreadyExists => {
            let expected = if path == schema {
                "its removal: it is not the schema of this version"
            } else {
                "another name, such as `tidegate init gateway.yaml`"
            };
            let path = path.display();
            print_error(&format!(
                "tidegate: {path} exists; nothing was written, expected {expected}"
            ))
        }
        Err((path, error)) => {
            print_error(&format!("tidegate: cannot write {}: {error}", path.display()))
        }
    }
}

/// What to write instead of a name that ends as files of other forms do; `None` for other names.
fn other_form(file: &Path) -> Option<String> {
    let extension = file.extension()?.to_str()?.to_ascii_lowercase();
    let is_other = ["json", "toml", "conf", "ini", "xml"].contains(&&*extension);
    let meant = file.with_extension("yaml");
    is_other.then(|| format!("a name such as {}", meant.display()))
}

/// Writes both files, or neither. Returns the path that cannot be written with the error.
fn write_both<'p>(file: &'p Path, schema: &'p Path) -> Result<(), (&'p Path, io::Error)> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(|error| (folder, error))?;
    }
    write_new(file, CONFIGURATION).map_err(|error| (file, error))?;
    // An earlier `init` in the folder leaves an equal schema.
    let text = config::editor_schema();
    if fs::read_to_string(schema).is_ok_and(|own| own == text) {
        return Ok(());
    }
    write_new(schema, text).map_err(|error| {
        // An earlier schema stays.
        let _ = fs::remove_file(file);
        (schema, error)
    })
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::snapshot::{SecretReading, Snapshot};

    fn notes(text: &str) -> Vec<String> {
        let loaded = config::parse("init.yaml", text).unwrap_or_else(|faults| panic!("{faults}"));
        let snapshot = Snapshot::compile(&loaded, SecretReading::Unread)
            .unwrap_or_else(|faults| panic!("{faults}"));
        snapshot.notes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_configuration_has_no_notes_and_its_options_are_valid() {
        assert_eq!(notes(CONFIGURATION), [] as [&str; 0]);
        let mut count = 0;
        let uncommented = CONFIGURATION.lines().map(|line| match line.strip_prefix('#') {
            Some(option) if !option.is_empty() && !is_comment(option) => {
                count += 1;
                option
            }
            _ => line,
        });
        let all = uncommented.collect::<Vec<_>>().join("\n");
        assert_eq!(notes(&all).len(), 1, "the limit that no route names: {:#?}", notes(&all));
        assert!(count > 12, "{count} options");
    }

    /// True for the text after `#` if it begins with exactly one space. An option that is commented
    /// out has no space there, or an indentation.
    fn is_comment(text: &str) -> bool {
        text.starts_with(' ') && !text.starts_with("  ")
    }

    #[test]
    fn nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let init = |file: &Path| {
            let mut out = Vec::new();
            run(&InitArgs { file: file.to_owned() }, &mut out)
        };
        for name in ["own.json", "own.JSON", "own.toml", "tidegate.conf"] {
            assert_eq!(init(&path(name)), Exit::BadInput, "{name}");
            assert!(!path(name).exists(), "{name}");
        }
        assert_eq!(init(&path("a/b/own.yaml")), Exit::Ok);
        assert_eq!(fs::read_to_string(path("a/b/own.yaml")).unwrap(), CONFIGURATION);
        let schema = fs::read_to_string(path("a/b/tidegate.schema.json")).unwrap();
        assert_eq!(schema, config::editor_schema());
        // The schema that an earlier `init` wrote may stay.
        assert_eq!(init(&path("a/b/other.yaml")), Exit::Ok);

        fs::write(path("a/b/own.yaml"), "mine").unwrap();
        assert_eq!(init(&path("a/b/own.yaml")), Exit::BadInput);
        assert_eq!(fs::read_to_string(path("a/b/own.yaml")).unwrap(), "mine");
        fs::write(path("a/b/tidegate.schema.json"), "mine").unwrap();
        assert_eq!(init(&path("a/b/third.yaml")), Exit::BadInput);
        assert!(!path("a/b/third.yaml").exists());
        assert_eq!(fs::read_to_string(path("a/b/tidegate.schema.json")).unwrap(), "mine");
    }
}
