//! No fault shows a secret, wherever it stands in a file.

use std::path::Path;

use tidegate_access::auth::{ApiKey, ConsumerTableBuilder};
use tidegate_config::{ConsumersText, Fault};

use super::parsed::GOOD;
use crate::snapshot::{SecretReading, Snapshot};

/// Each kind of secret whose form betrays it.
fn secrets() -> [String; 4] {
    let key = ApiKey::generate().unwrap();
    let hash = key.hash().to_string();
    let own = key.as_str().to_owned();
    [
        own,
        hash,
        "$2y$05$abcdefghijklmnopqrstuv".to_owned(),
        "$argon2id$v=19$m=1,t=1$c2Fs$aGFz".to_owned(),
    ]
}

/// Texts whose `?` is a secret in any form, because of its key.
const AT_A_KEY: [&str; 16] = [
    "- name: a\n  keys: ?\n",
    "- name: a\n  keys:\n    ?\n",
    "- name: a\n  keys:\n    - ?\n",
    "- name: a\n  keys:\n  - ?\n",
    "- name: a\n  keys: [?, ?]\n",
    "- name: a\n  keys: [{id: x, sha256: ?, nonsense: 1}]\n",
    "- name: a\n  keys:\n    - {id: x, sha256: ?}\n",
    "- name: a\n  keys:\n    - sha256: ?\n      nonsense: 1\n",
    "- name: a\n  keys:\n    - id: x\n      sha256: '?'\n",
    "- name: a\n  keys:\n    - id: x\n      sha256: |\n        ?\n",
    "- {name: a, password: ?, nonsense: 1}\n",
    "- name: a\n  password: ?\n",
    "- name: a\n  password:\n    - ?\n",
    "[{\"name\": \"a\", \"keys\": [\"?\"]}]",
    "[{\"name\": \"a\", \"keys\": [\n\"x\",\n\"?\"\n]}]",
    "[{\"name\":\"a\",\"keys\":[{\"sha256\":\"?\",\"nonsense\":1}]}]",
];

/// Texts in which a secret is known by its form alone.
const ANYWHERE: [&str; 14] = [
    "?\n- name: a\n",
    "?\n",
    "- name: a\n?\n",
    "- ?\n",
    "- ?: 1\n",
    "- name: a\n  ?: 1\n",
    "- name: [?]\n",
    "- name: a\n  plan: ?\n",
    "- name: a\n  billing_day: ?\n",
    "- name: a\n  disabled: ?\n",
    "- name: a\n  keys: [{sha256: x, id: ?, expires: ?}]\n",
    "- name: a\n  nonsense: 1 # ?\n",
    "- name: a\n  labels: ?\n",
    "{?: [",
];

fn faults_of_consumers(text: &str) -> String {
    let mut table = ConsumerTableBuilder::new(&[]);
    let faults = ConsumersText { name: "c.yaml", text }.read(&mut table);
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n")
}

/// The faults of a configuration, or its notes.
fn faults_of(text: &str) -> String {
    match Snapshot::load_to_serve(Path::new("t.yaml"), text.as_bytes(), &|_| None) {
        Ok((_, snapshot)) => snapshot.notes.iter().map(Fault::to_string).collect(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn no_fault_of_a_consumer_shows_a_secret() {
    for secret in secrets() {
        for text in AT_A_KEY.iter().chain(&ANYWHERE) {
            let text = text.replace('?', &secret);
            let shown = faults_of_consumers(&text);
            assert!(!shown.contains(&secret[4..secret.len() - 4]), "{text}\n{shown}");
        }
    }
    for text in AT_A_KEY {
        let text = text.replace('?', "own-hush-1.2");
        let shown = faults_of_consumers(&text);
        assert!(!shown.contains("hush"), "{text}\n{shown}");
        assert!(shown.contains("expected"), "{shown}");
    }
}

#[test]
fn no_fault_of_a_configuration_shows_a_secret() {
    let places = |list: &[&str]| -> Vec<String> {
        let entries = |text: &&str| {
            let text = text.trim_end().replace('\n', "\n    ");
            format!("{GOOD}consumers:\n  nonsense: 1\n  entries:\n    {text}\n")
        };
        list.iter().map(entries).collect()
    };
    let set = |line: &str| format!("{GOOD}  - {{name: b, nonsense: 1, {line}}}\n");
    let own = [
        set("headers: {request: {set: {x-upstream: ?}}}"),
        set("headers: {request: {set: {x-upstream: [?]}}}"),
        set("headers: {response: {add: {x-upstream: ?}}}"),
        format!("{GOOD}    headers:\n      request:\n        set:\n          x-upstream: [?]\n"),
        format!(
            "{GOOD}    headers:\n      request:\n        set:\n          x-upstream: {{a: ?}}\n"
        ),
        format!("{GOOD}admin: {{address: ':1', token: ?}}\n"),
        format!("{GOOD}store: {{redis: {{secret: ?}}}}\n"),
        format!("{GOOD}store:\n  redis:\n    password: |\n      ?\n"),
    ];
    let forms = [
        GOOD.replace('5', "?"),
        GOOD.replace("10s", "?"),
        GOOD.replace("client_ip", "?"),
        GOOD.replace("hello:", "?:"),
        GOOD.replace("quota:", "?:"),
        GOOD.replace("/x", "?"),
        format!("?\n{GOOD}"),
        format!("{GOOD}?\n"),
        format!("{GOOD}? : 1 # ?\n"),
        format!("{GOOD}nonsense: 1 # ?\n"),
        format!("{GOOD}listen: ['?', {{address: ?}}]\n"),
        format!("{GOOD}access_log: {{format: ?}}\n"),
        "{\"limits\": {\"a\": \"?\", \"?\": 1}}".to_owned(),
    ];
    let (at_a_key, anywhere) = (places(&AT_A_KEY), places(&ANYWHERE));
    for secret in secrets() {
        for text in own.iter().chain(&forms).chain(&at_a_key).chain(&anywhere) {
            let text = text.replace('?', &secret);
            let shown = faults_of(&text);
            assert!(!shown.contains(&secret[4..secret.len() - 4]), "{text}\n{shown}");
        }
    }
    for text in own.iter().chain(&at_a_key) {
        let text = text.replace('?', "own-hush-1.2");
        let shown = faults_of(&text);
        assert!(!shown.contains("hush"), "{text}\n{shown}");
    }
}

#[test]
fn the_rest_of_a_fault_stays() {
    let secret = ApiKey::generate().unwrap();
    let secret = secret.as_str();
    let stars = "*".repeat(secret.len());
    let shown = faults_of_consumers(&format!(
        "- name: a\n  keys:\n    - {{id: b, sha256: {secret}, expires: never}}\n"
    ));
    for kept in [
        "c.yaml:3:23: this value, expected the SHA-256 of the key",
        &format!("3 |     - {{id: b, sha256: {stars}, expires: never}}"),
    ] {
        assert!(shown.contains(kept), "{shown}");
    }
    let shown = faults_of_consumers(&format!("{secret}\n- name: a\n"));
    assert!(shown.contains(&format!("1 | {stars}\n")), "{shown}");
    let number = faults_of(&GOOD.replace("quota: 5", "max_tokens: 12x"));
    assert!(number.contains("|     max_tokens: 12x\n"), "{number}");
    for (set, kept) in [
        ("cache-control: no-store", "cache-control: no-store"),
        ("x-client: '{client_ip}', x-own: hush", "x-client: '{client_ip}', x-own: ****"),
    ] {
        let line = format!("headers: {{request: {{set: {{{set}}}}}}}, nonsense: 1");
        let shown = faults_of(&format!("{GOOD}  - {{name: b, {line}}}\n"));
        assert!(shown.contains(kept), "{shown}");
    }
}

/// Sections with the secret `hunter2` in a shape that belongs elsewhere.
const WRONG_SHAPES: [&str; 62] = [
    // A reference with a space after its colon.
    "store: {redis: {shards: [{primary: 'redis://127.0.0.1'}], password: {env: hunter2}}}",
    "store: {redis: {shards: [{primary: 'redis://127.0.0.1'}], password: {file: hunter2}}}",
    "store: {redis: {shards: [{primary: 'redis://127.0.0.1'}], password: {leak: hunter2}}}",
    "store: {redis: {shards: [{primary: 'redis://127.0.0.1'}], secret: {env: hunter2}}}",
    "store: {redis: {shards: [{primary: 'redis://127.0.0.1'}], sentinel: {password: {env: hunter2}}}}",
    "admin: {address: '127.0.0.1:9900', token: {env: hunter2}}",
    "auth: {b: {jwt: {issuer: i, audiences: [a], secret: {env: hunter2}}}}",
    "listen: [{address: ':0', tls: {acme: {domains: [a.test], external_account: {key_id: a, hmac_key: {env: hunter2}}}}}]",
    "listen: [{address: ':0', tls: {acme: {domains: [a.test], storage_key: {env: hunter2}}}}]",
    "traces: {endpoint: 'http://127.0.0.1:4318/v1/traces', headers: {x-team: {env: hunter2}}}",
    "traces: {endpoint: 'http://127.0.0.1:4318/v1/traces', headers: {x-honeycomb-team: hunter2}}",
    "traces: {endpoint: 'http://127.0.0.1:4318/v1/traces', headers: hunter2}",
    "traces: {headers: hunter2}",
    "traces: {headers: [hunter2]}",
    // The user of a URL.
    "upstreams: {app: 'http://hunter2@10.0.0.1:9000'}",
    "upstreams: {app: 'http://user:p/hunter2@h'}",
    "upstreams: {app: 'http://u:hunter2@b@h'}",
    "upstreams: {app: {targets: 'http://u:hunter2@b@h'}}",
    "upstreams: {app: {targets: ['http://u:hunter2/b@h']}}",
    // Lists and mappings at the name of a secret.
    "admin: {address: '127.0.0.1:9900', token: [[hunter2]]}",
    "admin: {address: '127.0.0.1:9900', token: {a: hunter2}}",
    "admin: {address: '127.0.0.1:9900', token: {hunter2: 1}}",
    "admin: {address: '127.0.0.1:9900', keys: {a: hunter2}}",
    "admin: {address: '127.0.0.1:9900', keys: [{a: hunter2}]}",
    "admin: {address: '127.0.0.1:9900', sha256: {a: hunter2}}",
    "admin: {address: '127.0.0.1:9900', api_key: [hunter2]}",
    "admin: {address: '127.0.0.1:9900', passwd: [hunter2]}",
    "admin: {address: '127.0.0.1:9900', storage_key: [hunter2]}",
    "keys: {a: hunter2}",
    "sha256: {a: hunter2}",
    "passwd: {a: [hunter2]}",
    // A key under another name.
    "consumers: {entries: [{name: acme, keys: [{key: hunter2}]}]}",
    "consumers: {entries: [{name: acme, keys: [{value: hunter2}]}]}",
    "consumers: {entries: [{name: acme, keys: {key: hunter2}}]}",
    "consumers: {entries: [{name: acme, key: hunter2}]}",
    "auth: {b: {basic: {users: {alice: hunter2}}}}",
    "auth: {b: {basic: {users: ['alice:hunter2']}}}",
    // A complex key.
    "? password\n: hunter2",
    "? secret\n: hunter2",
    "? token\n: hunter2",
    "? keys\n: hunter2",
    "admin:\n  ? token\n  : hunter2",
    "keys:\n- a: hunter2",
    "keys:\n  - a:\n      hunter2",
    "admin:\n  address: '127.0.0.1:9900'\n  ? keys\n  :\n    - a: hunter2",
    // An escaped key.
    "\"p\\x61ssword\": hunter2",
    "\"s\\x65cret\": hunter2",
    "\"t\\x6fken\": [hunter2]",
    "\"k\\x65ys\": [hunter2]",
    "\"sh\\x61256\": hunter2",
    "admin: {\"t\\x6fken\": hunter2}",
    // A variable that does not exist.
    "routes: [{name: r, upstream: app, headers: {request: {set: {authorization: 'Bearer a{hunter2}'}}}}]",
    "routes: [{name: r, upstream: app, headers: {request: {set: {authorization: '{hunter2}'}}}}]",
    "routes: [{name: r, upstream: app, headers: {request: {set: {x-own: 'a{hunter2}'}}}}]",
    "routes: [{name: r, upstream: app, headers: {response: {add: {x-own: '{hunter2'}}}}]",
    // Names with the name of a hash, and comments.
    "my_sha256: hunter2",
    "mysha256: hunter2",
    "my_sha256: [hunter2]",
    "admin: {mysha256: hunter2}",
    "zzz: 3 # sha256: hunter2",
    "zzz: 3 # password: hunter2",
    "zzz: 3 # my_sha256: 'hunter2'",
];

#[test]
fn no_wrong_shape_of_a_secret_is_shown() {
    for section in WRONG_SHAPES {
        let others = [
            ("upstreams", "{app: {targets: ['http://127.0.0.1:9000']}}"),
            ("routes", "[{name: r, upstream: app}]"),
        ];
        let others = others.iter().filter(|(name, _)| !section.starts_with(name));
        let others: Vec<String> =
            others.map(|(name, value)| format!("{name}: {value}\n")).collect();
        let others = others.concat();
        for text in [format!("{section}\n{others}"), format!("{others}{section}")] {
            let shown = faults_of(&text);
            assert!(!shown.contains("hunter2"), "{text}\n{shown}");
            assert!(shown.contains(", expected "), "{text}\n{shown}");
        }
    }
    for record in [
        "- {name: acme, keys: [{key: hunter2}]}",
        "- {name: acme, keys: {key: hunter2}}",
        "- {name: acme, key: hunter2}",
        "- name: acme\n  ? password\n  : [hunter2]",
        "- {name: acme, \"p\\x61ssword\": [hunter2]}",
        "- {name: acme, passwd: hunter2}",
    ] {
        let shown = faults_of_consumers(record);
        assert!(!shown.contains("hunter2"), "{record}\n{shown}");
        assert!(shown.contains(", expected "), "{record}\n{shown}");
    }
}

/// Values of templates and names of files.
#[test]
fn no_part_of_a_variables_value_is_shown() {
    for (value, line) in [
        ("p{hunter2}x", "headers: {request: {set: {x-own: '{${PW}}'}}}"),
        ("p{hunter2}x", "headers: {request: {set: {x-own: '${PW}'}}}"),
        ("p{hunter2}x", "rewrite: '/${PW}'"),
        ("p{hunter2}x", "redirect: {to: '${PW}'}"),
        ("{hunter2}", "redirect: {to: 'https://u:${PW}@h/{bad}'}"),
        ("`{hunter2}`", "redirect: {to: 'https://h/${PW}'}"),
        ("hunter2", "error_bodies: {'503': {file: '/nonexist/${PW}', content_type: text/html}}"),
    ] {
        let text = format!("{GOOD}  - {{name: b, match: {{path: /b}}, upstream: hello, {line}}}\n");
        let env = |name: &str| (name == "PW").then(|| value.into());
        let error =
            Snapshot::load_to_serve(Path::new("t.yaml"), text.as_bytes(), &env).unwrap_err();
        let shown = error.to_string();
        assert!(!shown.contains("hunter2"), "{text}\n{shown}");
        assert!(shown.contains(", expected "), "{text}\n{shown}");
    }
    for value in ["hunter2", "secret", "a"] {
        let text = format!("{GOOD}consumers: {{file: '/nonexist/${{PW}}'}}\n");
        let env = |name: &str| (name == "PW").then(|| value.into());
        let read = Snapshot::load_to_serve(Path::new("t.yaml"), text.as_bytes(), &env);
        let faults = read.unwrap().1.consumers.load().unwrap_err().to_string();
        assert!(faults.starts_with("/nonexist/${PW}: the file does not exist"), "{faults}");
    }
}

/// The message is no YAML: it has the value as it is.
#[test]
fn no_message_has_a_credential_beside_the_name_of_its_header() {
    const UPSTREAM: &str = "upstreams: {u: {targets: ['http://h:1']}}\n";
    for text in [
        "auth: {a: {forward: {to: 'http://h:1/', copy: ['x-api-key=Hu5h-a']}}}",
        "auth: {a: {forward: {to: 'http://h:1/', request_headers: ['authorization: Bearer Hu5h']}}}",
        "routes: [{name: a, upstream: u, headers: {response: {remove: ['set-cookie: token=Hu5h']}}}]",
        "routes: [{name: a, upstream: u, cors: {origins: ['*'], expose: ['x-api-key: Hu5h']}}]",
        "limits: {a: {quota: 1, window: 1s, key: ['header:x-token=Hu5h']}}",
        "limits: {a: {quota: 1, window: 1s, cost: 'header:x: password=Hu5h'}}",
        "consumers:\n  entries:\n  - name: a\n    ? password\n      : 'Hu5h'\n",
    ] {
        let text = format!("{UPSTREAM}{text}");
        let faults = match tidegate_config::parse("t.yaml", &text) {
            Ok(loaded) => {
                Snapshot::compile(&loaded, SecretReading::Unread).unwrap_err().to_string()
            }
            Err(faults) => faults.to_string(),
        };
        assert!(!faults.contains("Hu5h"), "{text}\n{faults}");
    }
}
