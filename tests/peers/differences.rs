//! Differences from the other proxies, with the reasons.

/// One line per difference: the stream, the proxy that differs, its outcome (the statuses that
/// the client reads and how the connection ends, then what the upstream receives), and the reason.
const TABLE: &str = r#"
no length :: nginx :: 200 200 closed | POST /a host=a ; GET /end host=a :: a POST without a body is told its length: some servers answer 411 without one
chunked :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: nginx has the whole body and says its length; we send it on as it comes
chunked in parts :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: as above
length in another spelling :: nginx :: 200 200 closed | POST /a host=a ; GET /end host=a :: the same: the upstream connection is closed that there is no body
chunked twice in a list :: nginx :: 501 closed |  :: refused by both; the client is what is wrong, not what we can do
identity :: nginx :: 501 closed |  :: refused by both; the client is what is wrong, not what we can do
gzip, chunked :: nginx :: 501 closed |  :: refused by both; the client is what is wrong, not what we can do
chunked, identity :: nginx :: 501 closed |  :: refused by both; the client is what is wrong, not what we can do
unknown coding :: nginx :: 501 closed |  :: refused by both; the client is what is wrong, not what we can do
coding in quotes :: nginx :: 501 closed |  :: refused by both; the client is what is wrong, not what we can do
coding empty :: nginx :: 501 closed |  :: refused by both; the client is what is wrong, not what we can do
coding in capitals :: nginx :: 200 200 closed | POST /a host=a length="" ; GET /end host=a :: as above
coding after a tab :: nginx :: 501 closed |  :: a tab is white space as good as any: RFC 9110, 5.6.3
coding after a vertical tab :: nginx :: 501 closed |  :: refused by both; the client is what is wrong, not what we can do
coding behind a bare LF :: nginx :: 200 200 closed | POST /a host=a length="" ; GET /end host=a :: a bare LF ends a line for some and not for others
bare LF :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: a bare LF ends a line for some and not for others
control character in a value :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: no field has it: RFC 9110, 5.5
DEL in a value :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: no field has it: RFC 9110, 5.5
brackets in a name :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: nginx drops the field; it is no name
underscore in a name :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: nginx drops all such names; we drop those that stand for a field that counts or frames
two spaces :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: a second reading of the target
space at the end :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: a second reading of the version
fragment :: nginx :: 200 200 closed | GET /a#b host=a ; GET /end host=a :: a fragment is no part of a target
beyond ASCII in the target :: nginx :: 200 200 closed | GET /é host=a ; GET /end host=a :: a target is ASCII
backslash :: nginx :: 200 200 closed | GET /a\b host=a ; GET /end host=a :: some recipients read it as a slash
HTTP/0.9 :: nginx :: closed | GET /a host=none :: there is no HTTP/0.9 any more
HTTP/1.2 :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: an unknown version may frame otherwise
HTTP/01.1 :: nginx :: 400 closed |  :: refused by both; the version is what is wrong with it
bare LFs before :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: a bare LF ends a line for some and not for others
trace :: nginx :: 405 closed |  :: refused by both; the connection is in step and goes on
connect :: nginx :: 400 closed |  :: refused by both; the connection is in step and goes on
options * :: nginx :: 400 closed |  :: it asks about the server, and that is the gateway
host with a user :: nginx :: 200 200 closed | GET /a host=u@a ; GET /end host=a :: no host has it: RFC 3986, 3.2.2
host with a bad port :: nginx :: 200 200 closed | GET /a host=a:b ; GET /end host=a :: no host has it: RFC 3986, 3.2.2
host with an open bracket :: nginx :: 200 200 closed | GET /a host=[::1 ; GET /end host=a :: no host has it: RFC 3986, 3.2.2
absolute form, other host :: nginx :: 200 200 closed | GET /x host=a ; GET /end host=a :: RFC 9112, 3.2.2: the target's host counts, whatever Host says
absolute form, other scheme :: nginx :: 200 200 closed | GET /x host=a ; GET /end host=a :: we serve http alone
chunk with LF alone :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: a bare LF ends a line for some and not for others
chunk end with LF alone :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: a bare LF ends a line for some and not for others
chunk size with a space :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1
chunk size with zeros :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: as above
chunk size in capitals :: nginx :: 200 200 closed | POST /a host=a length="0123456789" ; GET /end host=a :: as above
chunk extension :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: nginx has the whole body and says its length; neither sends an extension on
chunk extension empty :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1.1
chunk extension after a space :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: bad white space, which a recipient may or may not take
trailers :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: nginx drops trailers
trailers that frame :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: neither sends them on; nginx has the whole body and says its length
trailer with a bare LF :: nginx :: 200 200 closed | POST /a host=a length="" ; GET /end host=a :: a bare LF ends a line for some and not for others
trailer folded :: nginx :: 200 200 closed | POST /a host=a length="" ; GET /end host=a :: obsolete, and unfolded in more than one way
connection names a field :: nginx :: 200 200 closed | GET /a host=a x-kept="y" ; GET /end host=a :: RFC 9110, 7.6.1: what Connection names goes no further
keep-alive and proxy-connection :: nginx :: 200 200 closed | GET /a host=a proxy-connection="keep-alive" ; GET /end host=a :: both concern one connection only: RFC 9110, 7.6.1
HTTP/1.0 without a host :: nginx :: 200 closed | GET /a host=none :: the upstream is spoken to in HTTP/1.1, which must name a host
expect with nothing to come :: nginx :: 100 200 200 closed | POST /a host=a length="" ; GET /end host=a :: there is no body to go on with: RFC 9110, 10.1.1
expect something else :: nginx :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
too long :: nginx :: 413 closed |  :: what is left of the body is short: it is read to its end, and the connection goes on
shut within a body :: nginx :: closed |  :: the client may still read why
shut within a chunk :: nginx :: closed |  :: the client may still read why
no length :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: a POST without a body is told its length: some servers answer 411 without one
lower-case method :: haproxy :: 200 200 closed | get /a host=a ; GET /end host=a :: HAProxy takes it for another method; some upstreams read it as GET
length and chunked :: haproxy :: 200 closed | POST /a host=a chunked="" :: two ends: RFC 9112, 6.1 allows to refuse
chunked and length :: haproxy :: 200 closed | POST /a host=a chunked="" :: two ends: RFC 9112, 6.1 allows to refuse
length twice alike :: haproxy :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: even alike, two lengths are a smuggler's
length as a list :: haproxy :: 200 200 closed | POST /a host=a length="hello" ; GET /end host=a :: even alike, two lengths are a smuggler's
length in another spelling :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: the same: the upstream connection is closed that there is no body
gzip, chunked :: haproxy :: 422 closed |  :: refused by both
coding behind a bare LF :: haproxy :: 200 200 closed | POST /a host=a chunked="" ; GET /end host=a :: a bare LF ends a line for some and not for others
coding with HTTP/1.0 :: haproxy :: 200 closed | POST /a HTTP/1.0 host=a chunked="" :: HTTP/1.0 has no chunks: RFC 9112, 6.1 calls it faulty
bare LF :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: a bare LF ends a line for some and not for others
NUL in a value :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: some recipients end the value there
control character in a value :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: no field has it: RFC 9110, 5.5
DEL in a value :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: no field has it: RFC 9110, 5.5
folded :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: obsolete, and unfolded in more than one way
two spaces :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: a second reading of the target
tabs :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: a second reading of the target
backslash :: haproxy :: 200 200 closed | GET /a\b host=a ; GET /end host=a :: some recipients read it as a slash
no slash :: haproxy :: 200 200 closed | GET a host=a ; GET /end host=a :: no form of a target: RFC 9112, 3.2
HTTP/1.2 :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: an unknown version may frame otherwise
HTTP/2.0 :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: an unknown version may frame otherwise
HTTP/01.1 :: haproxy :: 400 closed |  :: refused by both; the version is what is wrong with it
bare LFs before :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: a bare LF ends a line for some and not for others
trace :: haproxy :: 200 200 closed | TRACE /a host=a ; GET /end host=a :: TRACE tells a page its own credentials; the connection is in step and goes on
connect :: haproxy :: 200 200 waits | CONNECT a:80 host=a ; GET /end host=a :: we are no tunnel; the connection is in step and goes on
options * :: haproxy :: 200 200 closed | OPTIONS * host=a ; GET /end host=a :: it asks about the server, and that is the gateway
get * :: haproxy :: 200 200 closed | GET * host=a ; GET /end host=a :: only OPTIONS may ask about the server
no host :: haproxy :: 200 200 closed | GET /a host=none ; GET /end host=a :: RFC 9112, 3.2: must be refused
host empty :: haproxy :: 200 200 closed | GET /a host= ; GET /end host=a :: no route can serve it
host twice alike :: haproxy :: 200 200 closed | GET /a host=a ; GET /end host=a :: even alike, the next recipient may take either
host with a path :: haproxy :: 200 200 closed | GET /a host=a/b ; GET /end host=a :: no host has it: RFC 3986, 3.2.2
host with a user :: haproxy :: 200 200 closed | GET /a host=u@a ; GET /end host=a :: no host has it: RFC 3986, 3.2.2
host with a bad port :: haproxy :: 200 200 closed | GET /a host=a:b ; GET /end host=a :: no host has it: RFC 3986, 3.2.2
host with two dots :: haproxy :: 200 200 closed | GET /a host=a..b ; GET /end host=a :: no host has it: RFC 3986, 3.2.2
host with an open bracket :: haproxy :: 200 200 closed | GET /a host=[::1 ; GET /end host=a :: no host has it: RFC 3986, 3.2.2
absolute form :: haproxy :: 200 200 closed | GET http://a/x?y host=a ; GET /end host=a :: an origin server is sent the path alone: RFC 9112, 3.2.1
absolute form, other host :: haproxy :: 400 closed |  :: RFC 9112, 3.2.2: the target's host counts, whatever Host says
absolute form with a user :: haproxy :: 200 200 closed | GET http://u@a/x host=a ; GET /end host=a :: a name with a user in it deceives readers: RFC 9110, 4.2.4
absolute form, other scheme :: haproxy :: 200 200 closed | GET ftp://a/x host=a ; GET /end host=a :: we serve http alone
chunk with LF alone :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: a bare LF ends a line for some and not for others
chunk end with LF alone :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: a bare LF ends a line for some and not for others
chunk size with a space :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1
chunk extension empty :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1.1
chunk extension after a space :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" ; GET /end host=a :: bad white space, which a recipient may or may not take
trailers that frame :: haproxy :: 200 200 closed | POST /a host=a chunked="hello" trailer="content-length: 1" trailer="host: b" ; GET /end host=a :: RFC 9110, 6.5.1: what frames or routes may not come behind the body
trailer with a bare LF :: haproxy :: 200 200 closed | POST /a host=a chunked="" trailer="x: y" ; GET /end host=a :: a bare LF ends a line for some and not for others
trailer folded :: haproxy :: 200 200 closed | POST /a host=a chunked="" trailer="x: y   z" ; GET /end host=a :: obsolete, and unfolded in more than one way
connection names a field :: haproxy :: 200 200 closed | GET /a host=a x-kept="y" ; GET /end host=a :: RFC 9110, 7.6.1: what Connection names goes no further
te :: haproxy :: 200 200 closed | GET /a host=a te="trailers" ; GET /end host=a :: we announce no trailers that we would have to merge
upgrade :: haproxy :: 200 200 closed | GET /a host=a upgrade="h2c" ; GET /end host=a :: nothing is upgraded yet, so nothing is offered
keep-alive and proxy-connection :: haproxy :: 200 200 closed | GET /a host=a keep-alive="timeout=5" proxy-connection="keep-alive" ; GET /end host=a :: both concern one connection only: RFC 9110, 7.6.1
upstream closes :: haproxy :: 200 closed | GET /upstream-closes host=a :: that the upstream closes is between it and us
HTTP/1.0 :: haproxy :: 200 closed | GET /a HTTP/1.0 host=a :: the upstream is spoken to in our own version: RFC 9110, 2.5
HTTP/1.0 without a host :: haproxy :: 200 closed | GET /a HTTP/1.0 host=none :: the upstream is spoken to in HTTP/1.1, which must name a host
HTTP/1.0 kept :: haproxy :: 200 200 closed | GET /a HTTP/1.0 host=a ; GET /end host=a :: the upstream is spoken to in our own version: RFC 9110, 2.5
expect :: haproxy :: 200 200 closed | POST /a host=a expect="100-continue" length="hello" ; GET /end host=a :: the expectation is the gateway's to answer, and is not sent on
expect with nothing to come :: haproxy :: 200 200 closed | POST /a host=a expect="100-continue" length="" ; GET /end host=a :: the expectation is the gateway's to answer, and is not sent on
expect something else :: haproxy :: 200 200 closed | POST /a host=a expect="more" length="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
too long :: haproxy :: 200 200 closed | POST /a host=a length="2000 bytes" ; GET /end host=a :: HAProxy bounds no bodies
shut within a head :: haproxy :: 400 closed |  :: nothing was asked
shut within a body :: haproxy :: closed |  :: the client may still read why
shut within a chunk :: haproxy :: closed |  :: the client may still read why
"#;

/// One line of the table.
pub(crate) struct Difference {
    pub(crate) stream: &'static str,
    pub(crate) peer: &'static str,
    pub(crate) outcome: &'static str,
    pub(crate) reason: &'static str,
}

/// The whole table.
pub(crate) fn all() -> Vec<Difference> {
    let lines = TABLE.lines().filter(|line| !line.is_empty());
    let known = lines.map(|line| {
        let columns: Vec<_> = line.split(" :: ").collect();
        let [stream, peer, outcome, reason] = columns[..] else { panic!("four columns: {line}") };
        Difference { stream, peer, outcome, reason }
    });
    known.collect()
}
