use testkit::client::{Client, Response};

use super::{Asker, Page, QUOTA};

/// A page whose limit admits one request of each host.
pub(super) fn one_of_each_host(page: &Page) -> Page {
    page.with("quota: 100", "quota: 1").with("key: [consumer]", "key: [consumer, host]")
}

impl Asker {
    /// Asserts that a client can neither choose its address nor the request that is asked about:
    /// each of these requests is counted for it, or refused.
    pub(super) fn assert_cannot_be_deceived(&self) {
        for fields in [
            "X-Forwarded-For: 192.0.2.1\r\n",
            "X-Forwarded-For: 192.0.2.2, 192.0.2.3\r\nX-Real-IP: 192.0.2.2\r\n",
            "X-Forwarded-Uri: /other\r\nX-Forwarded-Method: DELETE\r\n",
            "X-Original-URI: /other\r\nX-Original-Method: DELETE\r\n",
            "X-Original-URL: http://other.test/other\r\nX-Original-Method: DELETE\r\n",
            "X-Forwarded-Host: other.test\r\n",
            "Connection: X-Forwarded-For, X-Forwarded-Uri, X-Original-URI, close\r\n",
        ] {
            let response = self.get("/items/7", fields);
            assert!(matches!(response.status, 200 | 400 | 403), "{fields}: {}", response.head);
        }
        let admitted = self.application.request_count();
        let left = self.get("/items/7", "X-Forwarded-For: 192.0.2.4\r\n");
        assert_eq!(left.status, 200);
        // One caller was counted: its address has used up what the application got.
        for _ in admitted + 1..QUOTA {
            assert_eq!(self.get("/items/7", "").status, 200);
        }
        for fields in ["", "X-Forwarded-For: 192.0.2.5\r\n", "X-Forwarded-Uri: /other\r\n"] {
            let refused = self.get("/items/7", fields);
            assert_ne!(refused.status, 200, "{fields}: {}", refused.head);
        }
    }

    /// Asserts that a client that sends whole URLs cannot choose the host that is counted. The
    /// gateway is that of [`one_of_each_host`].
    pub(super) fn assert_counts_the_host_of_the_target(&self) {
        let send = |target: &str, host: &str| -> Response {
            let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            self.connect().send(request).read_response()
        };
        assert_eq!(send("/p", "real.test").status, 200);
        assert_eq!(send("/p", "real.test").status, 429);
        // Ports and letters in upper case make no other host.
        assert_eq!(send("/p", "REAL.test:8080").status, 429);
        for invented in ["x1", "x2", "real.test:1"] {
            let refused = send("http://real.test/p", invented);
            assert!(matches!(refused.status, 400 | 429), "{invented}: {}", refused.head);
        }
        assert_eq!(send("/p", "other.test").status, 200, "another host has a quota of its own");
        assert_eq!(self.application.request_count(), 2);
    }

    /// Asserts that the application gets no field that a framework could read as one of the
    /// gateway's.
    pub(super) fn assert_passes_no_spelling_of_the_consumer(&self) {
        let mixed = ["x-CONSUMER-name", "X-Consumer_Name", "X_Consumer-Plan", "x.consumer-name"];
        // Each character of a name for which frameworks read an underscore: RFC 9110, 5.6.2.
        let marks = "!#$%&'*+-.^_`|~".chars();
        let marked = marks
            .flat_map(|mark| ["Name", "Plan"].map(|last| format!("X{mark}Consumer{mark}{last}")));
        for spelling in mixed.map(str::to_owned).into_iter().chain(marked) {
            let key = "X-Api-Key: example-key\r\n";
            for more in ["", key] {
                for end in ["", " "] {
                    let fields = format!("{spelling}{end}: forged\r\n{more}");
                    let response = self.get("/items/7", &fields);
                    assert!(matches!(response.status, 200 | 400), "{spelling}: {}", response.head);
                }
            }
        }
        for request in self.application.request_texts() {
            assert!(!request.contains("forged"), "{request}");
        }
    }

    /// Asserts that clients get an answer whatever the number and the size of their fields, and
    /// that the proxy lives.
    pub(super) fn assert_answers_any_number_of_fields(&self) {
        let answer = |target: &str, fields: &str| {
            let mut client = Client::connect_from([127, 0, 0, 7], self.address);
            client.send(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
            let answer = client.try_read_response();
            let sent = fields.get(..fields.len().min(50));
            let answer =
                answer.unwrap_or_else(|| panic!("no answer: {} of {sent:?}", fields.len()));
            assert!((200..600).contains(&answer.status), "{}", answer.head);
        };
        for size in [4000, 7000, 8000, 12_000, 14_000, 15_000, 15_200, 15_300, 16_000, 20_000] {
            let long = "x".repeat(size);
            answer("/items/7", &format!("Cookie: {long}\r\n"));
            answer("/items/7", &format!("X-Field: {long}\r\n"));
            answer(&format!("/{long}"), "");
        }
        for name in ["X-Field-{n}", "Cookie", "Authorization", "X-Api-Key", "Accept"] {
            for count in [30, 60, 90, 94, 96, 97, 98, 99, 100, 150, 300] {
                let fields: String = (0..count)
                    .flat_map(|number| [name.replace("{n}", &number.to_string()), ": 1\r\n".into()])
                    .collect();
                answer("/items/7", &fields);
            }
        }
        assert_eq!(self.get("/items/7", "").status, 200);
    }
}
