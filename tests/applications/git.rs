//! Git over HTTP: git-http-backend in Apache, and git.

use std::{fs, path::Path, process::Command};

use crate::{
    apache::{Apache, PASSWORD, USER},
    program::{client, random_bytes, run, run_failing},
    recipe::{Recipe, replaced},
};

/// The files of a commit, in MiB.
const SIZES: [usize; 3] = [6, 9, 1];

const DIRECTIVES: &str = "
ScriptSock cgi.sock
SetEnv GIT_PROJECT_ROOT {root}/repositories
SetEnv GIT_HTTP_EXPORT_ALL 1
SetEnv GIT_CONFIG_COUNT 1
SetEnv GIT_CONFIG_KEY_0 safe.directory
SetEnv GIT_CONFIG_VALUE_0 *
ScriptAlias / {backend}/
<Location />
  AuthType Basic
  AuthName git
  AuthUserFile {root}/users
  Require valid-user
</Location>
";

/// git, with no configuration but this.
fn git(directory: &Path, arguments: &[&str]) -> Command {
    let mut git = client("git", "git");
    git.current_dir(directory).env("HOME", directory).env("GIT_CONFIG_NOSYSTEM", "1");
    git.env("GIT_TERMINAL_PROMPT", "0");
    git.args(["-c", "user.name=alice", "-c", "user.email=alice@example.com"]);
    git.args(["-c", "init.defaultBranch=main"]).args(arguments);
    git
}

/// Writes files that do not compress.
fn write_files(directory: &Path) {
    for (number, mebibytes) in SIZES.into_iter().enumerate() {
        fs::write(directory.join(format!("file {number}")), random_bytes(mebibytes))
            .expect("a file");
    }
}

fn start_server(directory: &Path) -> Apache {
    run(&mut git(directory, &["init", "-q", "--bare", "repositories/project.git"]));
    let repository = directory.join("repositories/project.git");
    run(&mut git(&repository, &["config", "http.receivepack", "true"]));
    let backend =
        run(&mut git(directory, &["--exec-path"])).trim().to_owned() + "/git-http-backend";
    Apache::start(directory, &["cgid"], &DIRECTIVES.replace("{backend}", &backend))
}

#[test]
fn git_pushes_and_clones_megabytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let apache = start_server(directory);
    let recipe = Recipe::start("git", apache.address());
    let url = format!("http://{USER}:{PASSWORD}@{}/project.git", recipe.address());
    let (own, other) = (directory.join("own"), directory.join("other"));
    run(&mut git(directory, &["clone", "-q", &url, "own"]));
    write_files(&own);
    run(&mut git(&own, &["add", "."]));
    run(&mut git(&own, &["commit", "-q", "-m", "one"]));
    run(&mut git(&own, &["push", "-q", "origin", "main"]));
    run(&mut git(directory, &["clone", "-q", &url, "other"]));
    run(&mut git(&other, &["fsck", "--full", "--strict"]));
    for number in 0..SIZES.len() {
        let name = format!("file {number}");
        let (pushed, cloned) = (fs::read(own.join(&name)), fs::read(other.join(&name)));
        assert_eq!(pushed.expect("our file"), cloned.expect("its copy"), "{name}");
    }
    // A second push, from the clone, and a pull.
    fs::write(other.join("small"), "small").expect("a file");
    run(&mut git(&other, &["add", "."]));
    run(&mut git(&other, &["commit", "-q", "-m", "two"]));
    run(&mut git(&other, &["push", "-q", "origin", "main"]));
    run(&mut git(&own, &["pull", "-q", "origin", "main"]));
    assert_eq!(fs::read_to_string(own.join("small")).expect("pulled"), "small");

    let wrong = format!("http://{USER}:wrong@{}/project.git", recipe.address());
    let refused = run_failing(&mut git(directory, &["clone", "-q", &wrong, "wrong"]));
    assert!(refused.contains("Authentication failed"), "{refused}");
}

/// What an operator sees who forgets `max_body`.
#[test]
fn git_reports_a_push_that_is_too_long() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let apache = start_server(directory);
    let recipe = Recipe::start_changed("git", apache.address(), |text| {
        replaced(&text, "max_body: 2GiB", "max_body: 10MiB")
    });
    let url = format!("http://{USER}:{PASSWORD}@{}/project.git", recipe.address());
    let own = directory.join("own");
    run(&mut git(directory, &["clone", "-q", &url, "own"]));
    write_files(&own);
    run(&mut git(&own, &["add", "."]));
    run(&mut git(&own, &["commit", "-q", "-m", "one"]));
    let refused = run_failing(&mut git(&own, &["push", "-q", "origin", "main"]));
    assert!(refused.contains("HTTP 413"), "{refused}");
}
