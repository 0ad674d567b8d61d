//! The questions that Traefik's `forwardAuth` sends, by its documentation and
//! `pkg/middlewares/auth/forward.go`: a `GET` to `address` with all of the client's fields but
//! those of its connection, over which it sets `X-Forwarded-*`.

use testkit::{
    client::{Client, Response},
    gateway::Gateway,
};

use super::{Page, QUOTA, TIDEGATE};

/// A request that Traefik asks about.
struct Asked<'a> {
    method: &'a str,
    host: &'a str,
    uri: &'a str,
    client: &'a str,
    /// The client's own fields, as lines.
    fields: &'a str,
}

/// The fields that Traefik sets itself, in place of the client's.
const SET: [&str; 5] = [
    "x-forwarded-for",
    "x-forwarded-method",
    "x-forwarded-proto",
    "x-forwarded-host",
    "x-forwarded-uri",
];
/// The fields of a connection.
const HOP_BY_HOP: [&str; 6] =
    ["connection", "keep-alive", "te", "trailers", "transfer-encoding", "upgrade"];

impl Asked<'_> {
    fn question(&self) -> String {
        let Self { method, host, uri, client, fields } = self;
        let is_copied = |line: &&str| {
            let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
            !SET.contains(&&*name) && !HOP_BY_HOP.contains(&&*name)
        };
        let copied: String = fields.split_inclusive("\r\n").filter(is_copied).collect();
        format!(
            "User-Agent: Go-http-client/1.1\r\n{copied}X-Forwarded-For: {client}\r\nX-Forwarded-Method: {method}\r\n\
             X-Forwarded-Proto: http\r\nX-Forwarded-Host: {host}\r\nX-Forwarded-Uri: {uri}\r\nAccept-Encoding: gzip\r\n"
        )
    }
}

fn start() -> (Gateway, String) {
    let page = Page::read("decide/traefik.md");
    let gateway = Gateway::start(&page.block("yaml").replace(TIDEGATE, "127.0.0.1:0"));
    let traefik: serde_json::Value =
        serde_yaml::from_str(&page.block("yaml,foreign")).expect("YAML");
    let address = &traefik["http"]["middlewares"]["tidegate"]["forwardAuth"]["address"];
    let address = address.as_str().expect("a URL");
    let path = address.strip_prefix("http://127.0.0.1:8081").expect("the gateway's address");
    (gateway, path.to_owned())
}

/// Traefik cannot run here: the page has to name each of the gateway's headers, and the option
/// without which Traefik passes their other spellings on.
#[test]
fn the_page_removes_every_spelling_of_the_consumer() {
    let page = Page::read("decide/traefik.md");
    let [middleware, entry_point] = page
        .blocks("yaml,foreign")
        .map(|block| serde_yaml::from_str(&block).expect("YAML"))
        .collect::<Vec<serde_json::Value>>()
        .try_into()
        .expect("two blocks");
    let replaced =
        &middleware["http"]["middlewares"]["tidegate"]["forwardAuth"]["authResponseHeaders"];
    assert_eq!(*replaced, serde_json::json!(["X-Consumer-Name", "X-Consumer-Plan"]));
    let http = &entry_point["entryPoints"]["web"]["http"];
    assert_eq!(http["aliasHeadersStrategy"], "delete");
}

#[test]
fn traefik_s_questions_are_answered_for_its_clients() {
    let (gateway, path) = start();
    let mut client = Client::connect(gateway.address());
    let mut ask = |asked: &Asked<'_>| -> Response { client.get(&path, &asked.question()) };
    let asked = Asked {
        method: "POST",
        host: "app.test",
        uri: "/items/7?x=1",
        client: "192.0.2.1",
        fields: "X-Forwarded-For: 192.0.2.9\r\nX-Forwarded-Uri: /other\r\nContent-Type: text/plain\r\n",
    };
    for left in (0..QUOTA as u64).rev() {
        let admitted = ask(&asked);
        assert_eq!((admitted.status, admitted.number("x-ratelimit-remaining")), (204, left));
    }
    let refused = ask(&asked);
    assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (429, 0));
    assert!((1..=61).contains(&refused.number("retry-after")));
    // A client that invents addresses or requests is the same one.
    for fields in
        ["X-Forwarded-For: 192.0.2.9\r\n", "X-Forwarded-Uri: /a\r\n", "Forwarded: for=1.2.3.4\r\n"]
    {
        assert_eq!(ask(&Asked { fields, ..asked }).status, 429, "{fields}");
    }
    let forged =
        ask(&Asked { fields: "X-Original-URI: /a\r\nX-Original-Method: GET\r\n", ..asked });
    assert_eq!(forged.status, 400, "{}", forged.text());
    assert_eq!(ask(&Asked { client: "192.0.2.2", ..asked }).status, 204);

    let key = "X-Api-Key: example-key\r\nX-Consumer-Name: admin\r\n";
    let admitted = ask(&Asked { fields: key, ..asked });
    assert_eq!((admitted.status, admitted.header("x-consumer-name")), (204, Some("acme")));
    let refused = ask(&Asked { fields: "X-Api-Key: wrong\r\n", client: "192.0.2.3", ..asked });
    assert_eq!(refused.status, 401);
    assert!(refused.header("www-authenticate").is_some());
}
