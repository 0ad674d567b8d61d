//! Differences from the other proxies, with the reasons.

/// One line per difference: the stream, the proxy that differs, its outcome (the statuses that
/// the client reads and how the connection ends, then what the upstream receives), and the reason.
const TABLE: &str = r#"
no length :: nginx :: 200 200 closed | POST /a host=a ; GET /end host=a :: we send `Content-Length: 0` with a POST without a body: some servers answer 411 without it
chunked :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: nginx buffers the body and sends its length; we stream it chunked
chunked in parts :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: nginx buffers the body and sends its length; we stream it chunked
length in another spelling :: nginx :: 200 200 closed | POST /a host=a ; GET /end host=a :: as for `no length`
coding with three dashes :: nginx :: 200 200 closed | POST /a host=a ; GET /end host=a :: as for `no length`
coding with three underscores :: nginx :: 200 200 closed | POST /a host=a ; GET /end host=a :: as for `no length`
chunked twice in a list :: nginx :: 501 closed |  :: refused by both; the fault is the client's, not a missing feature of ours
identity :: nginx :: 501 closed |  :: refused by both; the fault is the client's, not a missing feature of ours
gzip, chunked :: nginx :: 501 closed |  :: refused by both; the fault is the client's, not a missing feature of ours
chunked, identity :: nginx :: 501 closed |  :: refused by both; the fault is the client's, not a missing feature of ours
unknown coding :: nginx :: 501 closed |  :: refused by both; the fault is the client's, not a missing feature of ours
coding in quotes :: nginx :: 501 closed |  :: refused by both; the fault is the client's, not a missing feature of ours
coding empty :: nginx :: 501 closed |  :: refused by both; the fault is the client's, not a missing feature of ours
coding in capitals :: nginx :: 200 200 closed | POST /a host=a length="" ; GET /end host=a :: nginx buffers the body and sends its length; we stream it chunked
coding after a tab :: nginx :: 501 closed |  :: a tab is valid white space: RFC 9110, 5.6.3
coding after a vertical tab :: nginx :: 501 closed |  :: refused by both; the fault is the client's, not a missing feature of ours
coding behind a bare LF :: nginx :: 200 200 closed | POST /a host=a length="" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
bare LF :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
control character in a value :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: invalid in a field value: RFC 9110, 5.5
DEL in a value :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: invalid in a field value: RFC 9110, 5.5
brackets in a name :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: nginx drops the field; its name is invalid
underscore in a name :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: nginx drops all such names; we drop those that imitate a key or framing field
two spaces :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: recipients may read different targets
space at the end :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: recipients may read different versions
fragment :: nginx :: 200 200 closed | GET /a#b host=a ; GET /end host=a :: a target has no fragment
beyond ASCII in the target :: nginx :: 200 200 closed | GET /é host=a ; GET /end host=a :: a target is ASCII
backslash :: nginx :: 200 200 closed | GET /a\b host=a ; GET /end host=a :: some recipients read it as a slash
beyond ASCII in the query :: nginx :: 200 200 closed | GET /a?é host=a ; GET /end host=a :: not in a URI without percent-encoding, which browsers do: RFC 3986, 2.1
HTTP/0.9 :: nginx :: closed | GET /a host=none :: HTTP/0.9 is obsolete
bare LFs before :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
trace :: nginx :: 405 closed |  :: refused by both; the connection is in sync and is kept
connect :: nginx :: 400 closed |  :: refused by both; the connection is in sync and is kept
options * :: nginx :: 400 closed |  :: it concerns the server itself, which is the gateway
host with a user :: nginx :: 200 200 closed | GET /a host=u@a ; GET /end host=a :: not a valid host: RFC 3986, 3.2.2
host with a bad port :: nginx :: 200 200 closed | GET /a host=a:b ; GET /end host=a :: not a valid host: RFC 3986, 3.2.2
host with an open bracket :: nginx :: 200 200 closed | GET /a host=[::1 ; GET /end host=a :: not a valid host: RFC 3986, 3.2.2
absolute form, other host :: nginx :: 200 200 closed | GET /x host=a ; GET /end host=a :: RFC 9112, 3.2.2: the target's host counts, whatever Host says
absolute form, other scheme :: nginx :: 200 200 closed | GET /x host=a ; GET /end host=a :: we serve only `http`
chunk with LF alone :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk end with LF alone :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk size with a space :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1
chunk size with zeros :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: nginx buffers the body and sends its length; we stream it chunked
chunk size in capitals :: nginx :: 200 200 closed | POST /a host=a length="0123456789" ; GET /end host=a :: nginx buffers the body and sends its length; we stream it chunked
chunk extension :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: nginx buffers the body and sends its length; neither forwards extensions
chunk extension empty :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1.1
chunk extension after a space :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: "bad" white space, which a recipient may refuse
trailers :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: nginx drops trailers
trailers that frame :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: nginx buffers the body and sends its length; neither forwards them
trailer with a bare LF :: nginx :: 200 200 closed | POST /a host=a length="" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
trailer folded :: nginx :: 200 200 closed | POST /a host=a length="" ; GET /end host=a :: obsolete, and recipients unfold it differently
connection names a field :: nginx :: 200 200 closed | GET /a host=a x-kept="y" ; GET /end host=a :: fields that Connection names are not forwarded: RFC 9110, 7.6.1
keep-alive and proxy-connection :: nginx :: 200 200 closed | GET /a host=a proxy-connection="keep-alive" ; GET /end host=a :: both concern one connection only: RFC 9110, 7.6.1
HTTP/1.0 without a host :: nginx :: 200 closed | GET /a host=none :: we forward as HTTP/1.1, which requires Host
expect with nothing to come :: nginx :: 100 200 200 closed | POST /a host=a length="" ; GET /end host=a :: there is no body to continue with: RFC 9110, 10.1.1
expect something else :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
too long :: nginx :: 413 closed |  :: the rest of the body is short: we read it and keep the connection
shut within a body :: nginx :: closed |  :: the client may still read the response
shut within a chunk :: nginx :: closed |  :: the client may still read the response
no length :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: we send `Content-Length: 0` with a POST without a body: some servers answer 411 without it
lower-case method :: haproxy :: 200 200 closed | get /a host=a ; GET /end host=a :: to HAProxy it is another method; some upstreams read it as GET
length and chunked :: haproxy :: 200 closed | POST /a host=a chunked="" :: ambiguous length: RFC 9112, 6.1 allows a refusal
chunked and length :: haproxy :: 200 closed | POST /a host=a chunked="" :: ambiguous length: RFC 9112, 6.1 allows a refusal
length twice alike :: haproxy :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: two lengths, even if equal, suggest request smuggling
length as a list :: haproxy :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: two lengths, even if equal, suggest request smuggling
length in another spelling :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: as for `no length`
coding with three dashes :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: as for `no length`
coding with three underscores :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: as for `no length`
gzip, chunked :: haproxy :: 422 closed |  :: refused by both
coding behind a bare LF :: haproxy :: 200 200 closed | POST /a host=a chunked="" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
coding with HTTP/1.0 :: haproxy :: 200 closed | POST /a HTTP/1.0 host=a chunked="" :: HTTP/1.0 has no chunks: RFC 9112, 6.1 calls the framing faulty
bare LF :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
NUL in a value :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: some recipients end the value at the NUL
control character in a value :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: invalid in a field value: RFC 9110, 5.5
DEL in a value :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: invalid in a field value: RFC 9110, 5.5
folded :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: obsolete, and recipients unfold it differently
two spaces :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: recipients may read different targets
tabs :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: recipients may read different targets
backslash :: haproxy :: 200 200 closed | GET /a\b host=a ; GET /end host=a :: some recipients read it as a slash
no slash :: haproxy :: 200 200 closed | GET a host=a ; GET /end host=a :: not a valid form of a target: RFC 9112, 3.2
HTTP/2.0 :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: an unknown version may frame differently
bare LFs before :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
trace :: haproxy :: 200 200 closed | TRACE /a host=a ; GET /end host=a :: TRACE reveals credentials to a page; the connection is in sync and is kept
connect :: haproxy :: 200 200 waits | CONNECT a:80 host=a ; GET /end host=a :: we do not tunnel; the connection is in sync and is kept
options * :: haproxy :: 200 200 closed | OPTIONS * host=a ; GET /end host=a :: it concerns the server itself, which is the gateway
get * :: haproxy :: 200 200 closed | GET * host=a ; GET /end host=a :: `*` is only valid with OPTIONS
no host :: haproxy :: 200 200 closed | GET /a host=none ; GET /end host=a :: RFC 9112, 3.2: must be refused
host empty :: haproxy :: 200 200 closed | GET /a host= ; GET /end host=a :: no route can serve it
host twice alike :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: two hosts, even if equal, are invalid: RFC 9112, 3.2
host with a path :: haproxy :: 200 200 closed | GET /a host=a/b ; GET /end host=a :: not a valid host: RFC 3986, 3.2.2
host with a user :: haproxy :: 200 200 closed | GET /a host=u@a ; GET /end host=a :: not a valid host: RFC 3986, 3.2.2
host with a bad port :: haproxy :: 200 200 closed | GET /a host=a:b ; GET /end host=a :: not a valid host: RFC 3986, 3.2.2
host with two dots :: haproxy :: 200 200 closed | GET /a host=a..b ; GET /end host=a :: not a valid host: RFC 3986, 3.2.2
host with an open bracket :: haproxy :: 200 200 closed | GET /a host=[::1 ; GET /end host=a :: not a valid host: RFC 3986, 3.2.2
absolute form :: haproxy :: 200 200 closed | GET http://a/x?y host=a ; GET /end host=a :: an origin server gets only the path: RFC 9112, 3.2.1
absolute form, other host :: haproxy :: 400 closed |  :: RFC 9112, 3.2.2: the target's host counts, whatever Host says
absolute form with a user :: haproxy :: 200 200 closed | GET http://u@a/x host=a ; GET /end host=a :: a user part may deceive readers: RFC 9110, 4.2.4
absolute form, other scheme :: haproxy :: 200 200 closed | GET ftp://a/x host=a ; GET /end host=a :: we serve only `http`
chunk with LF alone :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk end with LF alone :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk size with a space :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1
chunk extension empty :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1.1
chunk extension after a space :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: "bad" white space, which a recipient may refuse
trailers that frame :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" trailer="content-length: 1" trailer="host: b" ; GET /end host=a :: no framing or routing fields in trailers: RFC 9110, 6.5.1
trailer with a bare LF :: haproxy :: 200 200 closed | POST /a host=a chunked="" trailer="x: y" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
trailer folded :: haproxy :: 200 200 closed | POST /a host=a chunked="" trailer="x: y   z" ; GET /end host=a :: obsolete, and recipients unfold it differently
connection names a field :: haproxy :: 200 200 closed | GET /a host=a x-kept="y" ; GET /end host=a :: fields that Connection names are not forwarded: RFC 9110, 7.6.1
te :: haproxy :: 200 200 closed | GET /a host=a te="trailers" ; GET /end host=a :: hop-by-hop: we do not announce `trailers` ourselves
upgrade :: haproxy :: 200 200 closed | GET /a host=a upgrade="h2c" ; GET /end host=a :: an upgrade to HTTP/2 is not forwarded
keep-alive and proxy-connection :: haproxy :: 200 200 closed | GET /a host=a keep-alive="timeout=5" proxy-connection="keep-alive" ; GET /end host=a :: both concern one connection only: RFC 9110, 7.6.1
upstream closes :: haproxy :: 200 closed | GET /upstream-closes host=a :: the upstream's close concerns only its own connection
HTTP/1.0 :: haproxy :: 200 closed | GET /a HTTP/1.0 host=a :: we forward with our own version: RFC 9110, 2.5
HTTP/1.0 without a host :: haproxy :: 200 closed | GET /a HTTP/1.0 host=none :: we forward as HTTP/1.1, which requires Host
HTTP/1.0 kept :: haproxy :: 200 200 closed | GET /a HTTP/1.0 host=a ; GET /end host=a :: we forward with our own version: RFC 9110, 2.5
expect :: haproxy :: 200 200 closed | POST /a host=a expect="100-continue" length="hello" ; GET /end host=a :: the gateway answers the expectation and does not forward it
expect with nothing to come :: haproxy :: 200 200 closed | POST /a host=a expect="100-continue" length="" ; GET /end host=a :: the gateway answers the expectation and does not forward it
expect something else :: haproxy :: 200 200 closed | POST /a host=a expect="more" length="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
too long :: haproxy :: 200 200 closed | POST /a host=a length="2000 bytes" ; GET /end host=a :: HAProxy does not limit bodies
shut within a head :: haproxy :: 400 closed |  :: there is no request to answer
shut within a body :: haproxy :: closed |  :: the client may still read the response
shut within a chunk :: haproxy :: closed |  :: the client may still read the response
"#;

/// One line of the table.
pub(crate) struct Difference {
    pub(crate) stream: &'static str,
    pub(crate) peer: &'static str,
    pub(crate) outcome: &'static str,
    pub(crate) reason: &'static str,
}

/// All differences.
pub(crate) fn all() -> Vec<Difference> {
    let lines = TABLE.lines().filter(|line| !line.is_empty());
    let differences = lines.map(|line| {
        let columns: Vec<_> = line.split(" :: ").collect();
        let [stream, peer, outcome, reason] = columns[..] else { panic!("four columns: {line}") };
        Difference { stream, peer, outcome, reason }
    });
    differences.collect()
}
