//! The commands' output and exit codes.

use super::{Arguments, Exit, run};
use crate::config::Fault;
use crate::snapshot::LoadError;

fn output(arguments: &[&str]) -> (Exit, String) {
    let mut out = Vec::new();
    let exit = run(std::iter::once("tidegate").chain(arguments.iter().copied()), &mut out);
    (exit, String::from_utf8(out).unwrap())
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.yaml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn clap_accepts_the_arguments() {
    <Arguments as clap::CommandFactory>::command().debug_assert();
}

#[test]
fn check_summarizes_a_valid_file() {
    let (_folder, path) = file(
        "upstreams: {hello: {respond: {}}}\nlimits: {l: {quota: 1, window: 1s}}\nroutes:\n\
         - {name: r, match: {host: h, path: /x, methods: [GET, HEAD]}, upstream: hello, limits: [l]}\n\
         - {name: s, match: {path: /y}, upstream: hello}\n",
    );
    let expected = format!(
        "{path}: ok (2 routes, 1 limit, 1 upstream)\n  r: GET,HEAD h/x -> hello (l)\n  \
         s: any */y -> hello (no limit)\n"
    );
    assert_eq!(output(&["check", "--config", &path]), (Exit::Ok, expected));
}

#[test]
fn check_accepts_every_example_and_notes_missing_secrets() {
    let mut count = 0;
    for entry in std::fs::read_dir("config/examples").unwrap() {
        let path = entry.unwrap().path();
        let (exit, printed) = output(&["check", "--config", path.to_str().unwrap()]);
        assert_eq!(exit, Exit::Ok, "{printed}");
        count += 1;
    }
    assert!(count > 8);
    for (example, missing) in [
        ("redis-sharded", "note: the environment variable REDIS_PASSWORD is not set"),
        ("redis-cluster", "note: cannot read the secret in /run/secrets/redis"),
        ("redis-cluster", "note: no file /etc/tidegate/redis-ca.pem"),
        ("redis", "note: the environment variable TIDEGATE_SECRET is not set"),
        (
            "compose",
            "anyone who can read this Redis can recover the addresses and tokens behind its keys",
        ),
    ] {
        let (_, printed) =
            output(&["check", "--config", &format!("config/examples/{example}.yaml")]);
        assert!(printed.contains(missing), "{printed}");
    }
    let arguments = ["tidegate", "check", "--config", "config/examples/redis-sentinel.yaml"];
    let mut out = Vec::new();
    let long = |_: &str| Some("hush".repeat(4));
    assert_eq!(super::run_with(arguments, &long, &mut out), Exit::Ok);
    let printed = String::from_utf8(out).unwrap();
    assert!(!printed.contains("note") && !printed.contains("hush"), "{printed}");

    // Invalid secrets.
    let blank = " ".repeat(20);
    let cases = [("hush", "has 4 bytes, fewer than 16"), ("", "is empty"), (&blank, "white space")];
    for (value, expected) in cases {
        let mut out = Vec::new();
        let variables = |_: &str| Some(value.to_owned());
        assert_eq!(super::run_with(arguments, &variables, &mut out), Exit::BadInput);
        let printed = String::from_utf8(out).unwrap();
        let place = "config/examples/redis-sentinel.yaml:17:13: the secret in env:TIDEGATE_SECRET";
        assert!(
            printed.contains(place) && printed.contains(expected) && !printed.contains("hush"),
            "{printed}"
        );
        assert!(printed.ends_with("1 fault found\n"), "{printed}");
    }
}

#[test]
fn check_prints_syntactic_and_semantic_faults() {
    let (_folder, path) = file("upstreams: {}\nroutes: 5\n");
    let (exit, printed) = output(&["check", "--config", &path]);
    assert_eq!(exit, Exit::BadInput);
    assert!(printed.starts_with(&format!("{path}:2:9: `5`, expected a list")), "{printed}");

    let (_folder, path) =
        file("upstreams: {}\nroutes: [{name: r, match: {path: /}, upstream: u}]\n");
    let (exit, printed) = output(&["check", "-c", &path]);
    assert_eq!(exit, Exit::BadInput);
    assert!(printed.starts_with(&format!("{path}:2:48: unknown upstream `u`")), "{printed}");

    let (exit, printed) = output(&["check", "-c", "no/such.yaml"]);
    assert_eq!(exit, Exit::BadInput);
    assert!(printed.starts_with("no/such.yaml:1:1: ") && printed.lines().count() == 3, "{printed}");
}

#[test]
fn a_panic_is_an_internal_error() {
    let fault = || Fault::of_file("t.yaml", "a bug", "none");
    assert_eq!(Exit::from_load_error(&LoadError::Faults(fault().into())), Exit::BadInput);
    assert_eq!(Exit::from_load_error(&LoadError::Panic(fault())).code(), 70);
}

#[test]
fn the_number_of_path_parameters_is_limited() {
    let params = |count: usize| (0..count).map(|n| format!("/{{p{n}}}")).collect::<Vec<_>>();
    for (count, exit) in [(26, Exit::Ok), (64, Exit::Ok), (65, Exit::BadInput)] {
        let path = params(count).concat();
        let (_folder, file) = file(&format!(
            "upstreams: {{u: {{respond: {{}}}}}}\nroutes:\n\
             - name: r\n  match: {{path: '{path}'}}\n  upstream: u\n"
        ));
        let (ended, printed) = output(&["check", "-c", &file]);
        assert_eq!(ended, exit, "{printed}");
        if exit == Exit::BadInput {
            assert!(printed.starts_with(&format!("{file}:4:17: ")), "{printed}");
            assert!(printed.contains("(65 parameters; at most 64), expected a path"), "{printed}");
        }
    }
}

#[test]
fn schema_is_json_with_all_sections() {
    let (exit, printed) = output(&["schema"]);
    assert_eq!(exit, Exit::Ok);
    let schema: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert!(schema["properties"]["limits"].is_object());
}

#[test]
fn standard_options_and_usage_errors() {
    let (exit, printed) = output(&["--version"]);
    assert_eq!(
        (exit, printed.as_str()),
        (Exit::Ok, concat!("tidegate ", env!("CARGO_PKG_VERSION"), "\n"))
    );
    assert!(output(&["--help"]).1.contains("completions"));
    assert!(output(&["completions", "bash"]).1.contains("_tidegate"));
    assert_eq!(output(&["chek"]).0, Exit::Usage);
    assert_eq!(output(&["check", "--konfig", "x"]).0, Exit::Usage);
    assert_eq!(output(&["--log", "tidegate=loud"]).0, Exit::Usage);
    assert_eq!(Exit::Internal.code(), 70);
}
