//! No fault shows a secret, wherever it stands in a file.

use std::path::Path;

use crate::auth::{ApiKey, ConsumerTableBuilder};
use crate::config::tests::GOOD;
use crate::config::{ConsumersText, Fault};
use crate::snapshot::Snapshot;

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
    match Snapshot::load_bytes(Path::new("t.yaml"), text.as_bytes(), &|_| None) {
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
