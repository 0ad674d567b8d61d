//! etcd, by gRPC over HTTP/2: etcdctl.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    time::Duration,
};

use testkit::{
    port::free_address,
    random::SplitMix64,
    wait::{eventually, sleep},
};

use crate::{
    program::{Running, Server, client, path_of, run},
    recipe::Recipe,
};

fn start_server(directory: &Path) -> Server {
    let (address, peers) = (free_address(), free_address());
    let mut command = Command::new(path_of("etcd", "etcd-server"));
    command.current_dir(directory).args(["--data-dir", "data", "--name", "one"]);
    for option in ["listen-client-urls", "advertise-client-urls"] {
        command.arg(format!("--{option}=http://{address}"));
    }
    for option in ["listen-peer-urls", "initial-advertise-peer-urls"] {
        command.arg(format!("--{option}=http://{peers}"));
    }
    command.arg(format!("--initial-cluster=one=http://{peers}"));
    Server::start(&mut command, directory, address)
}

#[test]
fn etcdctl_reads_writes_watches_and_leases() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let server = start_server(directory);
    let recipe = Recipe::start("etcd", server.address());
    let etcdctl = |arguments: &[&str]| {
        let mut command = client("etcdctl", "etcd-client");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", recipe.url()));
        command.args(arguments);
        command
    };
    assert_eq!(run(&mut etcdctl(&["put", "key", "value"])), "OK\n");
    assert_eq!(run(&mut etcdctl(&["get", "key"])), "key\nvalue\n");

    // A value of 1.2 MB: near the longest that etcd takes.
    let mut random = SplitMix64(11);
    let words = (0..75_000).map(|_| format!("{:016x}", random.next_u64()));
    let value = words.collect::<Vec<String>>().concat();
    fs::write(directory.join("value"), &value).expect("a file");
    let file = File::open(directory.join("value")).expect("our file");
    let put = etcdctl(&["put", "large"]).stdin(file).output().expect("it starts");
    assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
    assert_eq!(run(&mut etcdctl(&["get", "--print-value-only", "large"])), value + "\n");

    // A watch is a stream in both directions.
    let events = directory.join("events");
    let _watch = Running::start(&mut etcdctl(&["watch", "--prefix", "seen/"]), &events);
    let watched = |name: &str| {
        // A put before the watch has begun is not seen: put until it is.
        eventually("the watch sees a put", || {
            run(&mut etcdctl(&["put", &format!("seen/{name}"), name]));
            fs::read_to_string(&events)
                .expect("text")
                .contains(&format!("PUT\nseen/{name}\n{name}"))
        });
    };
    watched("first");
    watched("second");

    // A lease that is kept alive outlives its 2 seconds; afterwards its key is gone.
    let granted = run(&mut etcdctl(&["lease", "grant", "2"]));
    let lease = granted.split(' ').nth(1).expect("an identifier");
    let mut keep = etcdctl(&["lease", "keep-alive", lease]);
    let kept = Running::start(&mut keep, &directory.join("kept"));
    run(&mut etcdctl(&["put", &format!("--lease={lease}"), "seen/leased", "1"]));
    sleep(Duration::from_secs(4));
    assert_eq!(run(&mut etcdctl(&["get", "seen/leased"])), "seen/leased\n1\n");
    drop(kept);
    eventually("the lease ends", || {
        fs::read_to_string(&events).expect("text").contains("DELETE\nseen/leased")
    });

    assert!(run(&mut etcdctl(&["lock", "mine", "echo", "locked"])).contains("locked"));
}
