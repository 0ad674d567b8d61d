//! Configurations of other gateways, checked by their own programs.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::{
    certificate_files::substitute,
    page::{Block, all},
};

/// Runs a shell command line in `directory`. Debian installs nginx and `HAProxy` in root's path.
fn run(directory: &Path, line: &str) -> Output {
    let line = format!("PATH=\"$PATH:/usr/sbin\"; {line}");
    Command::new("sh").args(["-c", &line]).current_dir(directory).output().expect("a shell")
}

/// Asserts that the command line `check` accepts every block in `language`, completed by
/// `complete`. The blocks with `file=NAME` of the page are beside it; blocks with `fragment` are
/// parts, which tests of interoperability run.
fn assert_accepted(language: &str, complete: impl Fn(&str) -> String, check: &str) {
    let pages = all();
    let is_whole = |block: &&Block| block.language == language && !block.has("fragment");
    let mut count = 0;
    for page in &pages {
        let blocks = page.blocks();
        for block in blocks.iter().filter(is_whole) {
            let directory = tempfile::tempdir().expect("a directory");
            for other in &blocks {
                if let Some(name) = other.value("file") {
                    fs::write(directory.path().join(name), &other.text).expect("a file");
                }
            }
            let (text, _files) = substitute(&block.text);
            fs::write(directory.path().join("file"), complete(&text)).expect("a file");
            let output = run(directory.path(), check);
            let message = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}\n{message}", block.text);
            count += 1;
        }
    }
    assert!(count > 0, "no page has a configuration for {language}");
}

#[test]
fn nginx_accepts_its_configurations() {
    let complete = |block: &str| {
        // Ports that need no privilege.
        let block = block.replace("listen 80", "listen 127.0.0.1:8080");
        let block = block.replace("listen 443", "listen 127.0.0.1:8443");
        format!(
            "pid nginx.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{block}}}\n"
        )
    };
    assert_accepted("nginx", complete, "nginx -t -q -p . -c file");
}

#[test]
fn haproxy_accepts_its_configurations() {
    let timeouts = "defaults\n  timeout client 5s\n  timeout server 5s\n  timeout connect 5s\n";
    assert_accepted("haproxy", |block| timeouts.to_owned() + block, "haproxy -c -f file");
}
