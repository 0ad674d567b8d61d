//! WebDAV: Apache's mod_dav, with the tests of litmus and with cadaver.

use std::{fs, io::Write as _, path::Path, process::Stdio};

use crate::{
    apache::{Apache, PASSWORD, USER},
    program::{client, random_bytes, run},
    recipe::Recipe,
};

const DIRECTIVES: &str = "
DAVLockDB {root}/locks/db
DocumentRoot {root}/files
TypesConfig /dev/null
<Location />
  DAV on
  AuthType Basic
  AuthName files
  AuthUserFile {root}/users
  Require valid-user
</Location>
";

fn start_server(directory: &Path) -> Apache {
    fs::create_dir(directory.join("files")).expect("a folder");
    fs::create_dir(directory.join("locks")).expect("a folder");
    Apache::start(directory, &["dav", "dav_fs", "mime"], DIRECTIVES)
}

/// litmus tests copies, moves, properties and locks of a server.
#[test]
fn litmus_passes() {
    let directory = tempfile::tempdir().expect("a directory");
    let apache = start_server(directory.path());
    let recipe = Recipe::start("webdav", apache.address());
    let mut litmus = client("litmus", "litmus");
    // It writes its log into the current directory.
    litmus.current_dir(directory.path()).args([&format!("{}/", recipe.url()), USER, PASSWORD]);
    let report = run(&mut litmus);
    let summaries: Vec<&str> =
        report.lines().filter(|line| line.starts_with("<- summary")).collect();
    assert_eq!(summaries.len(), 5, "{report}");
    assert!(summaries.iter().all(|line| line.contains(" 0 failed")), "{report}");
}

#[test]
fn cadaver_uploads_copies_and_moves() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let apache = start_server(directory);
    let recipe = Recipe::start("webdav", apache.address());
    let content = random_bytes(20);
    fs::write(directory.join("large"), &content).expect("a file");
    fs::write(
        directory.join(".netrc"),
        format!("machine 127.0.0.1 login {USER} password {PASSWORD}\n"),
    )
    .expect("a file");
    let commands = "mkcol folder\ncd folder\nput large\ncopy large copied\nmove copied moved\nls\nget moved back\nquit\n";
    let mut cadaver = client("cadaver", "cadaver");
    cadaver.current_dir(directory).env("HOME", directory).arg(format!("{}/", recipe.url()));
    let mut child = cadaver
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("a pipe").write_all(commands.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("our own child");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !report.contains("failed"), "{report}");
    assert_eq!(fs::read(directory.join("back")).expect("downloaded"), content, "{report}");
    let stored = fs::read(directory.join("files/folder/moved")).expect("moved");
    assert_eq!(stored, content);
    assert!(!directory.join("files/folder/copied").exists());
}
