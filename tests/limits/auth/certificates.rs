//! Client certificates that name a consumer.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use testkit::{
    gateway::Gateway,
    tls::{Authority, connect},
    upstream::Upstream,
    yaml::fill,
};

const RULES: &str = "
listen:
  - address: 127.0.0.1:0
    tls: {certificates: [{cert: '{files}/own.pem', key: '{files}/own.key', client_ca: '{files}/partners.pem'}]}
auth: {partner: {certificate: {consumer: san_dns}}}
consumers:
  entries:
    - {name: acme.test, plan: gold}
    - {name: off.test, disabled: true}
plans: {gold: {each: 5}}
upstreams: {app: {targets: ['{target}']}}
limits: {each: {quota: 2, window: 1h, key: [consumer]}}
routes: [{name: all, upstream: app, auth: [partner], limits: [each]}]
";

#[test]
fn the_name_in_a_verified_certificate_is_the_consumer() {
    let files = tempfile::tempdir().expect("a directory");
    let (own, partners) = (Authority::new("own"), Authority::new("partners"));
    own.issue(&["a.test", "gateway.test"]).write(files.path(), "own");
    partners.write(files.path(), "partners.pem");
    let upstream = Upstream::hello();
    let (folder, target) = (files.path().display().to_string(), upstream.target());
    let gateway = Gateway::start(&fill(RULES, [("files", &*folder), ("target", &target)]));
    for (names, status, quota) in [
        (&["acme.test"][..], 200, 5),
        (&["new.test"], 200, 2),
        (&["off.test"], 401, 0),
        (&["acme.test", "other.test"], 401, 0),
    ] {
        let identity = partners.issue(names);
        let config = Arc::new(own.client(Some(&identity), &[]));
        let mut client = connect(gateway.address(), "a.test", &config).expect("a handshake");
        let response = client.get("/", "");
        assert_eq!(response.status, status, "{names:?}: {}", response.head);
        if status == 200 {
            assert_eq!(response.number("x-ratelimit-limit"), quota, "{names:?}");
            let text = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
            assert!(text.contains(&format!("x-consumer-name: {}\r\n", names[0])), "{text}");
        } else {
            assert_eq!(response.header("www-authenticate"), Some("Certificate realm=\"partner\""));
        }
    }
}

#[test]
fn a_prefix_keeps_the_names_of_certificates_apart() {
    let files = tempfile::tempdir().expect("a directory");
    let (own, partners) = (Authority::new("own"), Authority::new("partners"));
    own.issue(&["a.test", "gateway.test"]).write(files.path(), "own");
    partners.write(files.path(), "partners.pem");
    let upstream = Upstream::hello();
    let (folder, target) = (files.path().display().to_string(), upstream.target());
    let rules = RULES.replace("san_dns}}", "san_dns}, prefix: 'tls:'}");
    let rules = rules.replace("off.test, disabled", "'tls:new.test', disabled");
    let gateway = Gateway::start(&fill(&rules, [("files", &*folder), ("target", &target)]));
    for (name, status) in [("acme.test", 200), ("new.test", 401)] {
        let config = Arc::new(own.client(Some(&partners.issue(&[name])), &[]));
        let mut client = connect(gateway.address(), "a.test", &config).expect("a handshake");
        let response = client.get("/", "");
        assert_eq!(response.status, status, "{name}: {}", response.head);
        if status == 200 {
            assert_eq!(response.number("x-ratelimit-limit"), 2, "not the plan of acme.test");
            let text = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
            assert!(text.contains("x-consumer-name: tls:acme.test\r\n"), "{text}");
        }
    }
}

/// Runs `openssl` in `directory`, with this standard input. Returns its output.
fn openssl(directory: &Path, arguments: &str, input: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' ')).current_dir(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("openssl starts");
    child.stdin.take().expect("an input").write_all(input.as_bytes()).expect("it is read");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn clients_of_openssl_are_named_by_each_part_of_their_certificate() {
    let files = tempfile::tempdir().expect("a directory");
    let own = Authority::new("own");
    own.issue(&["a.test", "gateway.test"]).write(files.path(), "own");
    let run = |arguments: &str, input: &str| openssl(files.path(), arguments, input);
    let request = "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    run(
        &format!("{request} -x509 -subj /CN=partners -keyout ca.key -out partners.pem -days 2"),
        "",
    );
    run(&format!("{request} -subj /O=Acme/CN=acme-cn -keyout acme.key -out acme.csr"), "");
    let names = "subjectAltName=URI:spiffe://acme.test/shop,DNS:acme.test";
    std::fs::write(files.path().join("names"), names).expect("a file");
    run(
        "x509 -req -in acme.csr -CA partners.pem -CAkey ca.key -CAcreateserial -extfile names -days 2 -out acme.pem",
        "",
    );
    let fingerprint = run("x509 -in acme.pem -noout -fingerprint -sha256", "");
    let fingerprint = fingerprint.trim().rsplit('=').next().expect("a fingerprint");
    let fingerprint = fingerprint.replace(':', "").to_ascii_lowercase();
    for (part, name) in [
        ("san_uri", "spiffe://acme.test/shop"),
        ("san_dns", "acme.test"),
        ("subject_cn", "acme-cn"),
        ("sha256", &*fingerprint),
    ] {
        let upstream = Upstream::hello();
        let (folder, target) = (files.path().display().to_string(), upstream.target());
        let yaml = fill(RULES, [("files", &*folder), ("target", &target)]);
        let gateway =
            Gateway::start(&yaml.replace("consumer: san_dns", &format!("consumer: {part}")));
        let connect = format!(
            "s_client -quiet -connect {} -servername a.test -cert acme.pem -key acme.key",
            gateway.address()
        );
        run(&connect, "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
        let head = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
        assert!(head.contains(&format!("x-consumer-name: {name}\r\n")), "{part}: {head}");
    }
}
