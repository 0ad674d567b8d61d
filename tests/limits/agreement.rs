//! A thousand random requests, which the gateway, `explain` and `replay` decide alike.

use std::{collections::BTreeMap, fmt, fs};

use serde_json::Value;
use testkit::{
    client::Client, gateway::Gateway, port::free_port, random::SplitMix64, tls::Authority,
};
use tidegate::clock::{Clock, StoreTime, ms};

use testkit::commands::run;
use testkit::log_lines::read_lines;

const REQUESTS: usize = 1_000;

/// Ports of the listeners: in clear, in clear with redirects to https, with TLS.
#[derive(Clone, Copy)]
struct Ports {
    clear: u16,
    redirecting: u16,
    tls: u16,
}

/// Routes with every reason for an answer or a refusal that needs no state.
fn rules(ports: Ports, certificate: &str, log: &str) -> String {
    let Ports { clear, redirecting, tls } = ports;
    format!(
        "listen:
  - {{address: '127.0.0.1:{clear}'}}
  - {{address: '127.0.0.1:{redirecting}', redirect_https: true}}
  - {{address: '127.0.0.1:{tls}', tls: {{certificates: [{{{certificate}}}]}}}}
access_log: {log}
workers: 1
client: {{trusted_proxies: [127.0.0.1/32], token: [header:authorization, cookie:session]}}
upstreams:
  hello: {{respond: {{body: hello}}}}
limits:
  token: {{quota: 1000000, window: 10h, key: [token]}}
  team: {{quota: 1000000, window: 10h, key: ['header:x-team', 'query:k', 'path:id']}}
routes:
  - name: items
    match: {{path: '/items/{{id}}', methods: [GET, PUT]}}
    upstream: hello
    limits: [token, team]
    cors: {{origins: ['https://app.test'], headers: [x-team]}}
  - {{name: write, match: {{path: /write, methods: [POST]}}, upstream: hello, limits: [token], max_body: 10B}}
  - {{name: beta, match: {{path: /split, headers: {{x-beta: '1'}}}}, upstream: hello, limits: [token]}}
  - {{name: split, match: {{path: /split}}, upstream: hello}}
  - name: local
    match: {{path_prefix: /local}}
    upstream: hello
    limits: [token]
    allow: [192.0.2.0/29]
    cors: {{origins: ['*']}}
  - {{name: inner, match: {{host: inner.test, path: '/{{*rest}}'}}, upstream: hello, limits: [token]}}
  - {{name: old, match: {{path: /old}}, redirect: {{to: 'https://{{host}}/new', status: 301}}}}
  - {{name: quota, match: {{path: /quota}}, status: [token]}}
"
    )
}

/// One request, as a client sends it.
struct RandomRequest {
    method: &'static str,
    target: String,
    /// Lines without line breaks.
    headers: Vec<String>,
    body: &'static str,
    port: u16,
}

impl fmt::Display for RandomRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} HTTP/1.1\r\n", self.method, self.target)?;
        for line in &self.headers {
            write!(out, "{line}\r\n")?;
        }
        write!(out, "\r\n{}", self.body)
    }
}

fn pick<T: Copy>(rng: &mut SplitMix64, values: &[T]) -> T {
    values[rng.below(values.len() as u64) as usize]
}

impl RandomRequest {
    fn new(rng: &mut SplitMix64, ports: Ports) -> Self {
        let host =
            pick(rng, &["gateway.test", "GATEWAY.test:80", "inner.test", "inner.test.", "[::1]"]);
        let path = pick(
            rng,
            &[
                "/items/7",
                "/items/a%20b",
                "/items/%37",
                "//items/./7",
                "/items/7;v=1",
                "/items",
                "/write",
                "/write",
                "/write/",
                "/split",
                "/split",
                "/local/a/../b",
                "/local",
                "/old",
                "/quota",
                "/none",
                "/a%zz",
                "/../x",
                "/a%00",
                "/<b>",
                "/a b",
                "/%2e%2e/items/7",
            ],
        );
        let query = pick(rng, &["", "", "?x=1", "?k=1", "?k=1&k=2", "?k=%zz"]);
        let port = if rng.one_in(12) { ports.redirecting } else { ports.clear };
        let target = match rng.below(40) {
            0 => "*".to_owned(),
            1 | 2 => format!("http://inner.test:{port}{path}{query}"),
            _ => format!("{path}{query}"),
        };
        let mut request = Self {
            method: pick(
                rng,
                &[
                    "GET", "GET", "GET", "PUT", "POST", "POST", "DELETE", "HEAD", "OPTIONS",
                    "OPTIONS", "TRACE", "CONNECT", "get", "G(T",
                ],
            ),
            target,
            headers: vec![format!("Host: {host}")],
            body: "",
            port,
        };
        request.add_headers(rng);
        request
    }

    fn add_headers(&mut self, rng: &mut SplitMix64) {
        let client = match rng.below(6) {
            0 => String::new(),
            1 => "X-Forwarded-For: 2001:db8::7".to_owned(),
            last => format!("X-Forwarded-For: 6.6.6.6, 192.0.2.{}", 3 * last),
        };
        let token = pick(
            rng,
            &["", "Authorization: Bearer a", "Cookie: session=b", "Cookie: session=a; session=b"],
        );
        let second_token = if rng.one_in(15) { "authorization: Bearer c" } else { "" };
        let team = pick(rng, &["", "", "X-Team: a", "X-Team: a\r\nX-Team: b"]);
        let beta = pick(rng, &["", "X-Beta: 1", "X-Beta: 1", "X-Beta: 1\r\nX-Beta: 2"]);
        let rest = match rng.below(24) {
            0 => "Expect: nonsense",
            1 => "Expect: 100-continue",
            2 => "Broken : header",
            3 => "Host: second.test",
            4 => "a: b\u{1}",
            5 => "Via: 1.1 tidegate-0123456789abcdef",
            _ => "",
        };
        let given = [&client, token, second_token, team, beta, rest];
        let lines = given.iter().flat_map(|lines| lines.split("\r\n"));
        self.headers.extend(lines.filter(|line| !line.is_empty()).map(str::to_owned));
        if self.method == "OPTIONS" && !rng.one_in(3) {
            self.headers.push(pick(rng, &["Origin: https://app.test", "Origin: null"]).to_owned());
            let asked = pick(rng, &["GET", "PUT", "DELETE", "G(T"]);
            self.headers.push(format!("Access-Control-Request-Method: {asked}"));
        }
        if matches!(self.method, "PUT" | "POST") {
            self.body = pick(rng, &["", "short", "far more than ten bytes"]);
            self.headers.push(format!("Content-Length: {}", self.body.len()));
        }
    }

    /// What `explain` reports; `None` for a target that it cannot be asked about.
    fn explained(&self, config: &str) -> Option<Value> {
        let is_absolute = self.target.starts_with("http://");
        let url = match &*self.target {
            "*" => return None,
            // `explain` takes the one `Host` for the URL's.
            _ if is_absolute && self.headers.iter().any(|line| line == "Host: second.test") => {
                return None;
            }
            target if is_absolute => target.to_owned(),
            target => format!("http://gateway.test:{}{target}", self.port),
        };
        // An absolute target replaces the first `Host`.
        let headers = &self.headers[usize::from(is_absolute)..];
        let mut arguments = vec!["explain", "-c", config, "--json", "-X", self.method];
        arguments.extend(headers.iter().flat_map(|line| ["-H", &**line]));
        arguments.push(&url);
        Some(serde_json::from_str(&run(&arguments)).expect("JSON"))
    }

    /// Sends the request; returns the status of the response.
    fn status(&self) -> u16 {
        let mut client = Client::connect(([127, 0, 0, 1], self.port).into());
        client.send(self.to_string());
        let mut next = || client.read_head().expect("a response").0;
        let status = next();
        if status == 100 { next() } else { status }
    }

    /// True if the log does not show what decides the request: the listener that redirects, or the
    /// headers of a preflight, which `replay` takes each `OPTIONS` of a route with `cors` for.
    fn is_beyond_log(&self, status: u64) -> bool {
        let has_cors = self.target.contains("items") || self.target.contains("local");
        status == 308 || self.method == "OPTIONS" && has_cors && status != 204
    }
}

fn text(line: &Value, key: &str) -> String {
    line[key].as_str().unwrap_or_default().to_owned()
}

/// The decision that `replay` prints of a line on which it agrees with the gateway.
fn replayed_as(line: &Value) -> String {
    let (limit, route) = (text(line, "limit"), text(line, "route"));
    match (&*limit, &*route) {
        ("not_checked", _) => "-\tnot_checked\t-".to_owned(),
        (_, "") => format!("-\tnone\t{}", line["status"]),
        _ => format!("{route}\t{limit}\t-"),
    }
}

#[test]
fn gateway_explain_and_replay_decide_alike() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let (config, log) = (path("tidegate.yaml"), path("access.log"));
    let certificate = Authority::new("tests").issue(&["gateway.test"]).write(directory.path(), "a");
    let ports = Ports { clear: free_port(), redirecting: free_port(), tls: free_port() };
    let yaml = rules(ports, &certificate.entry(), &log);
    fs::write(&config, &yaml).expect("a file");
    let clock = Clock::manual(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::start_at(&yaml, clock.clone());
    let mut rng = SplitMix64(28);
    let requests: Vec<_> = (0..REQUESTS).map(|_| RandomRequest::new(&mut rng, ports)).collect();
    let statuses: Vec<u16> = requests
        .iter()
        .map(|request| {
            clock.set(clock.store_time() + ms(1));
            request.status()
        })
        .collect();
    let lines = read_lines(log.as_ref(), REQUESTS);
    drop(gateway);
    let replayed = run(&["replay", "--config", &config, "--decisions", &log]);
    assert_eq!((lines.lines().count(), replayed.lines().count()), (REQUESTS, REQUESTS));

    let mut compared = BTreeMap::<(String, u64), u32>::new();
    let mut replays = 0;
    let decided = lines.lines().zip(replayed.lines());
    for ((request, status), (line, decision)) in requests.iter().zip(statuses).zip(decided) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(line["status"], status, "{request}{line}");
        let status = u64::from(status);
        if let Some(explanation) = request.explained(&config) {
            assert_eq!(explanation["status"], status, "{request}{explanation}");
            assert_eq!(text(&explanation, "route"), text(&line, "route"), "{request}{explanation}");
            assert_eq!(
                text(&explanation, "decision"),
                text(&line, "limit"),
                "{request}{explanation}"
            );
        }
        *compared.entry((text(&line, "limit"), status)).or_default() += 1;
        let decision = decision.splitn(3, '\t').nth(2).expect("a decision");
        // A log has no headers, which decide between two routes of this path.
        let is_undecided = decision == "-\tundecided\t-" && request.target.contains("/split");
        if !is_undecided && !request.is_beyond_log(status) {
            assert_eq!(decision, replayed_as(&line), "{request}{line}");
            replays += 1;
        }
    }
    for (decision, status) in [
        ("admitted", 200),
        ("none", 200),
        ("none", 204),
        ("none", 301),
        ("none", 308),
        ("none", 404),
        ("none", 405),
        ("denied", 403),
        ("not_checked", 400),
        ("not_checked", 405),
        ("not_checked", 413),
        ("not_checked", 417),
    ] {
        let count = compared.get(&(decision.to_owned(), status));
        assert!(count.is_some(), "no request was {decision} with {status}: {compared:?}");
    }
    assert!(replays > 800, "{replays} decisions of `replay` were compared");
}
