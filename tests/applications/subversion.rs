//! Subversion over HTTP: Apache's mod_dav_svn, and svn.

use std::{fs, path::Path, process::Command};

use crate::{
    apache::{Apache, PASSWORD, USER},
    program::{client, random_bytes, run, run_failing},
    recipe::Recipe,
};

const DIRECTIVES: &str = "
<Location /svn>
  DAV svn
  SVNPath {root}/repository
  AuthType Basic
  AuthName svn
  AuthUserFile {root}/users
  Require valid-user
</Location>
";

/// svn as the user, in `directory`.
fn svn(directory: &Path, arguments: &[&str]) -> Command {
    let mut svn = client("svn", "subversion");
    svn.current_dir(directory).env("HOME", directory);
    svn.args(["--non-interactive", "--no-auth-cache", "--username", USER, "--password", PASSWORD]);
    svn.args(arguments);
    svn
}

#[test]
fn svn_commits_copies_and_checks_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    run(client("svnadmin", "subversion").arg("create").arg(directory.join("repository")));
    let apache = Apache::start(directory, &["dav", "dav_svn"], DIRECTIVES);
    let recipe = Recipe::start("subversion", apache.address());
    let url = |path: &str| format!("{}/svn/{path}", recipe.url());
    run(&mut svn(directory, &["mkdir", "-q", "-m", "first", &url("trunk"), &url("tags")]));
    run(&mut svn(directory, &["checkout", "-q", &url("trunk"), "own"]));
    let own = directory.join("own");
    let large = random_bytes(12);
    fs::write(own.join("large"), &large).expect("a file");
    fs::create_dir(own.join("földer")).expect("a folder");
    for number in 0..100 {
        fs::write(own.join(format!("földer/file {number}")), number.to_string()).expect("a file");
    }
    run(&mut svn(&own, &["add", "-q", "large", "földer"]));
    run(&mut svn(&own, &["commit", "-q", "-m", "second"]));
    // Copies and moves have a `Destination`: in the repository, and in a commit.
    run(&mut svn(directory, &["copy", "-q", "-m", "third", &url("trunk"), &url("tags/one")]));
    run(&mut svn(&own, &["move", "-q", "földer/file 7", "földer/seven"]));
    run(&mut svn(&own, &["propset", "-q", "note", "a note", "large"]));
    run(&mut svn(&own, &["commit", "-q", "-m", "fourth"]));
    run(&mut svn(&own, &["lock", "-q", "large"]));

    run(&mut svn(directory, &["checkout", "-q", &url(""), "other"]));
    let other = directory.join("other");
    assert_eq!(fs::read(other.join("tags/one/large")).expect("copied"), large);
    assert_eq!(fs::read(other.join("trunk/large")).expect("committed"), large);
    assert_eq!(fs::read_to_string(other.join("trunk/földer/seven")).expect("moved"), "7");
    assert!(!other.join("trunk/földer/file 7").exists());
    assert!(other.join("tags/one/földer/file 7").exists());
    let log = run(&mut svn(directory, &["log", &url("")]));
    assert!(["first", "second", "third", "fourth"].iter().all(|text| log.contains(text)), "{log}");

    let mut wrong = client("svn", "subversion");
    wrong.env("HOME", directory).args(["--non-interactive", "--no-auth-cache", "ls", &url("")]);
    let refused = run_failing(wrong.args(["--username", USER, "--password", "wrong"]));
    assert!(refused.contains("Authentication failed"), "{refused}");
}
