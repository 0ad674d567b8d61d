//! Commands of the program, run in this process.

use std::fs;

use serde_json::Value;
use tidegate::cli;

use crate::yaml::without_indentation;

/// The output of a command, which must succeed.
pub fn run(arguments: &[&str]) -> String {
    let mut out = Vec::new();
    let exit = cli::run(std::iter::once("tidegate").chain(arguments.iter().copied()), &mut out);
    let text = String::from_utf8(out).expect("text");
    assert_eq!(exit, cli::Exit::Ok, "{arguments:?}\n{text}");
    text
}

/// The path of a file with the configuration `yaml`, and the directory that it is in.
pub fn configuration(yaml: &str) -> (String, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tidegate.yaml");
    fs::write(&file, without_indentation(yaml)).expect("a file");
    (file.to_str().expect("a path").to_owned(), directory)
}

/// What `tidegate explain --json` says of a request, by the configuration at `config`.
pub fn explained(config: &str, method: &str, url: &str, headers: &[&str]) -> Value {
    let mut arguments = vec!["explain", "-c", config, "--json", "-X", method];
    arguments.extend(headers.iter().flat_map(|line| ["-H", *line]));
    arguments.push(url);
    serde_json::from_str(&run(&arguments)).expect("JSON")
}
