//! A registry of container images: Docker's, and skopeo.

use std::{fs, path::Path, process::Command};

use testkit::port::free_address;

use crate::{
    program::{Server, client, path_of, run, run_failing, script},
    recipe::{Recipe, replaced},
};

/// A hash by bcrypt of `a-secret`, which is all that the registry accepts.
const USERS: &str = "alice:$2b$04$vNLbdgB7ztFG1Vq/qTglCOWZ9Qq/YHEQmXc/eUIK6cdI3bqUYr4bq\n";

fn start_server(directory: &Path) -> Server {
    let address = free_address();
    let root = directory.display();
    let config = format!(
        "version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {root}/data}}}}
http: {{addr: '{address}'}}
auth: {{htpasswd: {{realm: registry, path: {root}/users}}}}
"
    );
    let file = directory.join("registry.yml");
    fs::write(&file, config).expect("a file");
    fs::write(directory.join("users"), USERS).expect("a file");
    let mut command = Command::new(path_of("docker-registry", "docker-registry"));
    Server::start(command.arg("serve").arg(file), directory, address)
}

/// skopeo, as the user with this password.
fn skopeo(side: Side, password: &str) -> Command {
    let mut skopeo = client("skopeo", "skopeo");
    let side = match side {
        Side::Source => "src",
        Side::Destination => "dest",
    };
    skopeo.args(["--insecure-policy", "copy", &format!("--{side}-tls-verify=false")]);
    skopeo.arg(format!("--{side}-creds=alice:{password}"));
    skopeo
}

/// Where the registry is in a copy.
#[derive(Clone, Copy)]
enum Side {
    Source,
    Destination,
}

fn make_image(directory: &Path) {
    fs::create_dir(directory.join("image")).expect("a folder");
    run(script("make_image.py", &["image"]).current_dir(directory));
}

#[test]
fn skopeo_pushes_and_pulls_layers() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let server = start_server(directory);
    let recipe = Recipe::start("registry", server.address());
    make_image(directory);
    let remote = format!("docker://{}/team/image:one", recipe.address());
    let mut push = skopeo(Side::Destination, "a-secret");
    run(push.current_dir(directory).args(["dir:image", &remote]));
    fs::create_dir(directory.join("pulled")).expect("a folder");
    let mut pull = skopeo(Side::Source, "a-secret");
    run(pull.current_dir(directory).args([&remote, "dir:pulled"]));
    run(Command::new("diff").current_dir(directory).args(["-r", "image", "pulled"]));

    let mut wrong = skopeo(Side::Destination, "wrong");
    let refused = run_failing(wrong.current_dir(directory).args(["dir:image", &remote]));
    assert!(refused.contains("authentication required"), "{refused}");
}

#[test]
fn pulls_are_limited_by_user_and_skopeo_waits() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let server = start_server(directory);
    let recipe = Recipe::start_changed("registry", server.address(), |text| {
        replaced(&text, "{quota: 200, window: 6h", "{quota: 2, window: 10s")
    });
    make_image(directory);
    let remote = format!("docker://{}/image", recipe.address());
    let mut push = skopeo(Side::Destination, "a-secret");
    run(push.current_dir(directory).args(["dir:image", &format!("{remote}:one")]));
    let pull = |tag: &str| {
        let mut pull = skopeo(Side::Source, "a-secret");
        pull.current_dir(directory).args([&format!("{remote}:{tag}"), "dir:pulled"]);
        pull
    };
    for _ in 0..3 {
        let missing = run_failing(&mut pull("none"));
        assert!(missing.contains("manifest unknown"), "{missing}");
    }
    assert_eq!(recipe.refused_by("pulls-per-user"), 0, "failed pulls are free");
    for _ in 0..3 {
        run(&mut pull("one"));
    }
    let refused = recipe.refused_by("pulls-per-user");
    assert!((1..=4).contains(&refused), "{refused} refusals: it waits as long as it is told");
}
