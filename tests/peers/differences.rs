//! Differences from the other proxies, with the reasons.

/// One line per difference: the stream, the proxy that differs, its outcome (the statuses that
/// the client reads and how the connection ends, then what the upstream receives), and the reason.
/// `||` stands between outcomes of which one or the other occurs: Envoy sends the next request on a
/// connection that the upstream is just closing, or on a new one.
const TABLE: &str = r#"
no length :: nginx :: 200 200 closed | POST /a host=a ; GET /end host=a :: we send `Content-Length: 0` with a POST without a body: some servers answer 411 without it
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
coding after a tab :: nginx :: 501 closed |  :: a tab is valid white space: RFC 9110, 5.6.3
coding after a vertical tab :: nginx :: 501 closed |  :: refused by both; the fault is the client's, not a missing feature of ours
coding behind a bare LF :: nginx :: 200 200 closed | POST /a host=a body="" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
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
chunk with LF alone :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk end with LF alone :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk size with a space :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1
chunk extension empty :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1.1
chunk extension after a space :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: "bad" white space, which a recipient may refuse
trailers :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: nginx drops trailers
trailer with a bare LF :: nginx :: 200 200 closed | POST /a host=a body="" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
trailer folded :: nginx :: 200 200 closed | POST /a host=a body="" ; GET /end host=a :: obsolete, and recipients unfold it differently
connection names a field :: nginx :: 200 200 closed | GET /a host=a x-kept="y" ; GET /end host=a :: fields that Connection names are not forwarded: RFC 9110, 7.6.1
keep-alive and proxy-connection :: nginx :: 200 200 closed | GET /a host=a proxy-connection="keep-alive" ; GET /end host=a :: both concern one connection only: RFC 9110, 7.6.1
HTTP/1.0 without a host :: nginx :: 200 closed | GET /a host=none :: we forward as HTTP/1.1, which requires Host
expect with nothing to come :: nginx :: 100 200 200 closed | POST /a host=a body="" ; GET /end host=a :: there is no body to continue with: RFC 9110, 10.1.1
expect something else :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
too long :: nginx :: 413 closed |  :: the rest of the body is short: we read it and keep the connection
shut within a body :: nginx :: closed |  :: the client may still read the response
shut within a chunk :: nginx :: closed |  :: the client may still read the response
no length :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: we send `Content-Length: 0` with a POST without a body: some servers answer 411 without it
lower-case method :: haproxy :: 200 200 closed | get /a host=a ; GET /end host=a :: to HAProxy it is another method; some upstreams read it as GET
length and chunked :: haproxy :: 200 closed | POST /a host=a body="" :: ambiguous length: RFC 9112, 6.1 allows a refusal
chunked and length :: haproxy :: 200 closed | POST /a host=a body="" :: ambiguous length: RFC 9112, 6.1 allows a refusal
length twice alike :: haproxy :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: two lengths, even if equal, suggest request smuggling
length as a list :: haproxy :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: two lengths, even if equal, suggest request smuggling
length in another spelling :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: as for `no length`
coding with three dashes :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: as for `no length`
coding with three underscores :: haproxy :: 200 200 closed | POST /a host=a ; GET /end host=a :: as for `no length`
gzip, chunked :: haproxy :: 422 closed |  :: refused by both
coding behind a bare LF :: haproxy :: 200 200 closed | POST /a host=a body="" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
coding with HTTP/1.0 :: haproxy :: 200 closed | POST /a HTTP/1.0 host=a body="" :: HTTP/1.0 has no chunks: RFC 9112, 6.1 calls the framing faulty
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
chunk with LF alone :: haproxy :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk end with LF alone :: haproxy :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk size with a space :: haproxy :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1
chunk extension empty :: haproxy :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: not in the grammar: RFC 9112, 7.1.1
chunk extension after a space :: haproxy :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: "bad" white space, which a recipient may refuse
trailers that frame :: haproxy :: 200 200 closed | POST /a host=a body="hello" trailer="content-length: 1" trailer="host: b" ; GET /end host=a :: no framing or routing fields in trailers: RFC 9110, 6.5.1
trailer with a bare LF :: haproxy :: 200 200 closed | POST /a host=a body="" trailer="x: y" ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
trailer folded :: haproxy :: 200 200 closed | POST /a host=a body="" trailer="x: y   z" ; GET /end host=a :: obsolete, and recipients unfold it differently
connection names a field :: haproxy :: 200 200 closed | GET /a host=a x-kept="y" ; GET /end host=a :: fields that Connection names are not forwarded: RFC 9110, 7.6.1
te :: haproxy :: 200 200 closed | GET /a host=a te="trailers" ; GET /end host=a :: hop-by-hop: we do not announce `trailers` ourselves
upgrade :: haproxy :: 200 200 closed | GET /a host=a upgrade="h2c" ; GET /end host=a :: an upgrade to HTTP/2 is not forwarded
keep-alive and proxy-connection :: haproxy :: 200 200 closed | GET /a host=a keep-alive="timeout=5" proxy-connection="keep-alive" ; GET /end host=a :: both concern one connection only: RFC 9110, 7.6.1
upstream closes :: haproxy :: 200 closed | GET /upstream-closes host=a :: the upstream's close concerns only its own connection
HTTP/1.0 :: haproxy :: 200 closed | GET /a HTTP/1.0 host=a :: we forward with our own version: RFC 9110, 2.5
HTTP/1.0 without a host :: haproxy :: 200 closed | GET /a HTTP/1.0 host=none :: we forward as HTTP/1.1, which requires Host
HTTP/1.0 kept :: haproxy :: 200 200 closed | GET /a HTTP/1.0 host=a ; GET /end host=a :: we forward with our own version: RFC 9110, 2.5
expect :: haproxy :: 200 200 closed | POST /a host=a expect="100-continue" body="hello" ; GET /end host=a :: the gateway answers the expectation and does not forward it
expect with nothing to come :: haproxy :: 200 200 closed | POST /a host=a expect="100-continue" body="" ; GET /end host=a :: the gateway answers the expectation and does not forward it
expect something else :: haproxy :: 200 200 closed | POST /a host=a expect="more" body="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
too long :: haproxy :: 200 200 closed | POST /a host=a body="2000 bytes" ; GET /end host=a :: HAProxy does not limit bodies
shut within a head :: haproxy :: 400 closed |  :: there is no request to answer
shut within a body :: haproxy :: closed |  :: the client may still read the response
shut within a chunk :: haproxy :: closed |  :: the client may still read the response
NUL, encoded :: nginx :: 400 closed |  :: refused by both; the connection is in sync and is kept
answer chunk malformed :: nginx :: closed | GET /answers/answer-chunk-malformed host=a :: it answers nothing at all; our client sees a response that is cut
answer chunk size after a space :: nginx :: closed | GET /answers/answer-chunk-size-after-a-space host=a :: it answers nothing at all; our client sees a response that is cut
answer connection names a field :: nginx :: 200 x-kept="y" "ok" 200 closed | GET /answers/answer-connection-names-a-field host=a ; GET /end host=a :: fields that Connection names are not forwarded: RFC 9110, 7.6.1
answer identity :: nginx :: 200 "ok" 200 closed | GET /answers/answer-identity host=a ; GET /end host=a :: a removed coding, with an unknown end: RFC 9112, 6.3
answer length and chunked :: nginx :: 200 "ok" 200 closed | GET /answers/answer-length-and-chunked host=a ; GET /end host=a :: ambiguous length: RFC 9112, 6.3 suggests an error
answer length as a list :: nginx :: waits | GET /answers/answer-length-as-a-list host=a :: nginx reads until the server closes; two lengths, even if equal, suggest response splitting
answer length empty :: nginx :: waits | GET /answers/answer-length-empty host=a :: no valid length: RFC 9110, 8.6. nginx reads until the server closes
answer length twice :: nginx :: waits | GET /answers/answer-length-twice host=a :: two lengths: RFC 9112, 6.3. nginx 1.22 waits for the larger one
answer length twice alike :: nginx :: 200 "ok" 200 closed | GET /answers/answer-length-twice-alike host=a ; GET /end host=a :: two lengths, even if equal, suggest response splitting
answer length with a plus :: nginx :: waits | GET /answers/answer-length-with-a-plus host=a :: no valid length: RFC 9110, 8.6. nginx reads until the server closes
answer with 80 KiB of trailers :: nginx :: 200 "hello" 200 closed | GET /answers/answer-with-80-KiB-of-trailers host=a ; GET /end host=a :: nginx drops trailers; ours have the bound of heads, 64 KiB
answer with 9 KiB of trailers :: nginx :: 200 "hello" 200 closed | GET /answers/answer-with-9-KiB-of-trailers host=a ; GET /end host=a :: nginx drops trailers
answer with bare LFs :: nginx :: 200 "ok" 200 closed | GET /answers/answer-with-bare-LFs host=a ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
answer with trailers :: nginx :: 200 "hello" 200 closed | GET /answers/answer-with-trailers host=a ; GET /end host=a :: nginx drops trailers
chunk size with 40 zeros :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: no program writes so many; a bound of 16 digits
dot in a name :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: nginx drops such names; we drop those that imitate a key or framing field
dot segment :: nginx :: 200 200 closed | GET /./a/./b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
early hints :: nginx :: waits | GET /answers/early-hints host=a :: nginx 1.22 does not read interim responses
encoding malformed :: nginx :: 400 closed |  :: refused by both; the connection is in sync and is kept
expect more :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
expect twice :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: a list with one member is that member: RFC 9110, 5.6.1
expect with a comma :: nginx :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: a list with one member is that member: RFC 9110, 5.6.1
expect, continued :: nginx :: 100 200 200 closed | POST /continues host=a body="hello" ; GET /end host=a :: the server decides whether the body is sent: RFC 9110, 10.1.1
expect, refused :: nginx :: 100 401 closed | POST /refused-early host=a :: the server decides whether the body is sent: RFC 9110, 10.1.1
letter, encoded :: nginx :: 200 200 closed | GET /%61%7Eb host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
no content with a length :: nginx :: 204 content-length="2" 200 closed | GET /answers/no-content-with-a-length host=a ; GET /end host=a :: a 204 has no length: RFC 9110, 8.6
no content with length 0 :: nginx :: 204 content-length="0" 200 closed | GET /answers/no-content-with-length-0 host=a ; GET /end host=a :: a 204 has no length: RFC 9110, 8.6
processing :: nginx :: waits | GET /answers/processing host=a :: nginx 1.22 does not read interim responses
status above 599 :: nginx :: 700 "ok" 200 closed | GET /answers/status-above-599 host=a ; GET /end host=a :: not a status: RFC 9110, 15
switch with length 0 :: nginx :: 101 upgrade="websocket" content-length="0" "pong" closed | GET /answers/switch-with-length-0 host=a upgrade="websocket" :: a 101 has no length: RFC 9110, 8.6
switch with length 5 :: nginx :: 101 upgrade="websocket" content-length="5" "pong" closed | GET /answers/switch-with-length-5 host=a upgrade="websocket" :: a 101 has no length: RFC 9110, 8.6
switch without a question :: nginx :: 101 upgrade="websocket" "HTTP/1.1 200 OK" closed | GET /answers/switch-without-a-question host=a ; GET /end host=a :: without `Upgrade` there is no tunnel: a client would lose its next response, RFC 9110, 15.2.2
two dots :: nginx :: 200 200 closed | GET /a/../b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
two dots above the root :: nginx :: 400 closed |  :: refused by both; the connection is in sync and is kept
two dots, encoded :: nginx :: 200 200 closed | GET /a/%2e%2E/b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
two slashes :: nginx :: 200 200 closed | GET //a//b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
underscore in another name :: nginx :: 200 200 closed | GET /a host=a ; GET /end host=a :: nginx drops such names; we drop those that imitate a key or framing field
via :: nginx :: 200 200 closed | GET /via host=a via="1.1 other" ; GET /end host=a :: each proxy adds itself: RFC 9110, 7.6.3; `via: false` switches it off
NUL, encoded :: haproxy :: 200 200 closed | GET /a%00b host=a ; GET /end host=a :: some servers end the path at the NUL
answer chunk malformed :: haproxy :: 502 200 closed | GET /answers/answer-chunk-malformed host=a ; GET /end host=a :: the head was sent already: HAProxy waits for the first chunk
answer chunk size after a space :: haproxy :: 502 200 closed | GET /answers/answer-chunk-size-after-a-space host=a ; GET /end host=a :: the head was sent already: HAProxy waits for the first chunk
answer connection names a field :: haproxy :: 200 x-kept="y" "ok" 200 closed | GET /answers/answer-connection-names-a-field host=a ; GET /end host=a :: fields that Connection names are not forwarded: RFC 9110, 7.6.1
answer folded :: haproxy :: 200 x-kept="y   z" "ok" 200 closed | GET /answers/answer-folded host=a ; GET /end host=a :: RFC 9112, 5.2 asks for an error, or for spaces instead; recipients unfold differently
answer in HTTP/1.0 :: haproxy :: 200 "ok" closed | GET /answers/answer-in-HTTP/1.0 host=a :: HAProxy ends its connection with the body; we send chunks
answer length and chunked :: haproxy :: 200 "ok" 200 closed | GET /answers/answer-length-and-chunked host=a ; GET /end host=a :: ambiguous length: RFC 9112, 6.3 suggests an error
answer length as a list :: haproxy :: 200 "ok" 200 closed | GET /answers/answer-length-as-a-list host=a ; GET /end host=a :: two lengths, even if equal, suggest response splitting
answer length twice alike :: haproxy :: 200 "ok" 200 closed | GET /answers/answer-length-twice-alike host=a ; GET /end host=a :: two lengths, even if equal, suggest response splitting
answer to HEAD with a coding :: haproxy :: 200 transfer-encoding="chunked" 200 closed | HEAD /answers/answer-to-HEAD-with-a-coding host=a ; GET /end host=a :: the coding concerns one connection only: RFC 9112, 6.1 makes it optional here
answer with 80 KiB of trailers :: haproxy :: 502 200 closed | GET /answers/answer-with-80-KiB-of-trailers host=a ; GET /end host=a :: the head was sent already; ours have the bound of heads, 64 KiB
answer with NUL in a value :: haproxy :: 200 x-kept="y\0z" "ok" 200 closed | GET /answers/answer-with-NUL-in-a-value host=a ; GET /end host=a :: some recipients end the value at the NUL
answer with bare LFs :: haproxy :: 200 "ok" 200 closed | GET /answers/answer-with-bare-LFs host=a ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
answer without a length :: haproxy :: 200 "ok" closed | GET /answers/answer-without-a-length host=a :: HAProxy ends its connection with the body; we send chunks
chunk size with 40 zeros :: haproxy :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: no program writes so many; a bound of 16 digits
chunked, complete :: haproxy :: 200 200 closed | POST /framed host=a in chunks body="hello" ; GET /end host=a :: some servers answer 411 to chunks: a body that is complete in its first packet has a length
dot segment :: haproxy :: 200 200 closed | GET /./a/./b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
encoding malformed :: haproxy :: 200 200 closed | GET /a%zz host=a ; GET /end host=a :: not a valid path: RFC 3986, 2.1
expect empty :: haproxy :: 200 200 closed | POST /a host=a expect="" body="hello" ; GET /end host=a :: an empty list expects nothing
expect in capitals :: haproxy :: 200 200 closed | POST /a host=a expect="100-CONTINUE" body="hello" ; GET /end host=a :: the body is here, so the server has nothing to be asked
expect more :: haproxy :: 200 200 closed | POST /a host=a expect="100-continue, more" body="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
expect twice :: haproxy :: 200 200 closed | POST /a host=a expect="100-continue, 100-continue" body="hello" ; GET /end host=a :: the body is here, so the server has nothing to be asked
expect with a comma :: haproxy :: 200 200 closed | POST /a host=a expect="100-continue," body="hello" ; GET /end host=a :: the body is here, so the server has nothing to be asked
expect, refused :: haproxy :: 401 waits | POST /refused-early host=a expect="100-continue" :: the client may send its body or not, so the connection ends: RFC 9110, 10.1.1
letter, encoded :: haproxy :: 200 200 closed | GET /%61%7Eb host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
not modified with a coding :: haproxy :: 304 transfer-encoding="chunked" 200 closed | GET /answers/not-modified-with-a-coding host=a ; GET /end host=a :: the coding concerns one connection only: RFC 9112, 6.1 makes it optional here
status above 599 :: haproxy :: 700 "ok" 200 closed | GET /answers/status-above-599 host=a ; GET /end host=a :: not a status: RFC 9110, 15
two dots :: haproxy :: 200 200 closed | GET /a/../b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
two dots above the root :: haproxy :: 200 200 closed | GET /../a host=a ; GET /end host=a :: some servers read another path: RFC 3986, 5.2.4
two dots, encoded :: haproxy :: 200 200 closed | GET /a/%2e%2E/b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
two slashes :: haproxy :: 200 200 closed | GET //a//b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
via :: haproxy :: 200 200 closed | GET /via host=a via="1.1 other" ; GET /end host=a :: each proxy adds itself: RFC 9110, 7.6.3; `via: false` switches it off
NUL, encoded :: envoy :: 200 200 closed | GET /a%00b host=a ; GET /end host=a :: some servers end the path at the NUL
an upgrade with a body :: envoy :: waits |  :: Envoy waits for the 101 before it sends what follows; RFC 9110, 7.8 puts the body before the switch
answer connection names a field :: envoy :: 200 x-kept="y" "ok" 200 closed | GET /answers/answer-connection-names-a-field host=a ; GET /end host=a :: fields that Connection names are not forwarded: RFC 9110, 7.6.1
answer folded :: envoy :: 200 x-kept="y z" "ok" 200 closed | GET /answers/answer-folded host=a ; GET /end host=a :: RFC 9112, 5.2 asks for an error, or for spaces instead; recipients unfold differently
answer to HEAD with a coding :: envoy :: 200 transfer-encoding="chunked" 200 closed | HEAD /answers/answer-to-HEAD-with-a-coding host=a ; GET /end host=a :: the coding concerns one connection only: RFC 9112, 6.1 makes it optional here
answer to HEAD without a length :: envoy :: 200 transfer-encoding="chunked" 200 closed | HEAD /answers/answer-to-HEAD-without-a-length host=a ; GET /end host=a :: the coding concerns one connection only: RFC 9112, 6.1 makes it optional here
answer with bare LFs :: envoy :: 200 "ok" 200 closed | GET /answers/answer-with-bare-LFs host=a ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk size with 40 zeros :: envoy :: 200 200 closed | POST /a host=a body="hello" ; GET /end host=a :: no program writes so many; a bound of 16 digits
chunked, complete :: envoy :: 200 200 closed | POST /framed host=a in chunks body="hello" ; GET /end host=a :: some servers answer 411 to chunks: a body that is complete in its first packet has a length
dot segment :: envoy :: 200 200 closed | GET /./a/./b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
early hints :: envoy :: 200 "ok" 200 closed | GET /answers/early-hints host=a ; GET /end host=a :: Envoy forwards no interim responses unless configured otherwise
encoding malformed :: envoy :: 200 200 closed | GET /a%zz host=a ; GET /end host=a :: not a valid path: RFC 3986, 2.1
expect empty :: envoy :: 200 200 closed | POST /a host=a expect="" body="hello" ; GET /end host=a :: an empty list expects nothing
expect more :: envoy :: 200 200 closed | POST /a host=a expect="100-continue, more" body="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
expect twice :: envoy :: 200 200 closed | POST /a host=a expect="100-continue, 100-continue" body="hello" ; GET /end host=a :: a list with one member is that member; the body is here, so nothing has to be asked
expect with a comma :: envoy :: 200 200 closed | POST /a host=a expect="100-continue," body="hello" ; GET /end host=a :: a list with one member is that member; the body is here, so nothing has to be asked
expect, continued :: envoy :: 100 200 200 closed | POST /continues host=a body="hello" ; GET /end host=a :: the server decides whether the body is sent: RFC 9110, 10.1.1
expect, refused :: envoy :: 100 401 closed | POST /refused-early host=a :: the server decides whether the body is sent: RFC 9110, 10.1.1
letter, encoded :: envoy :: 200 200 closed | GET /%61%7Eb host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
no content with a length :: envoy :: 502 200 closed | GET /answers/no-content-with-a-length host=a ; GET /end host=a :: a 204 ends with its head: RFC 9112, 6.3
preflight :: envoy :: 200 200 closed | OPTIONS /a host=a body="" ; GET /end host=a :: Envoy sends `Content-Length: 0` with OPTIONS
processing :: envoy :: 200 "ok" 200 closed | GET /answers/processing host=a ; GET /end host=a :: Envoy forwards no interim responses unless configured otherwise
status above 599 :: envoy :: 700 "ok" 200 closed | GET /answers/status-above-599 host=a ; GET /end host=a :: not a status: RFC 9110, 15
switch with a coding :: envoy :: 502 closed | GET /answers/switch-with-a-coding host=a upgrade="websocket" :: a 101 ends with its head, whatever it says: RFC 9112, 6.3
switch with length 5 :: envoy :: 502 closed | GET /answers/switch-with-length-5 host=a upgrade="websocket" :: a 101 ends with its head, whatever it says: RFC 9112, 6.3
switch without a question :: envoy :: 101 "HTTP/1.1 200 OK" closed | GET /answers/switch-without-a-question host=a ; GET /end host=a || 101 "HTTP/1.1 503 Service Unavailable" closed | GET /answers/switch-without-a-question host=a :: without `Upgrade` there is no tunnel: a client would lose its next response, RFC 9110, 15.2.2
two dots :: envoy :: 200 200 closed | GET /a/../b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
two dots above the root :: envoy :: 200 200 closed | GET /../a host=a ; GET /end host=a :: some servers read another path: RFC 3986, 5.2.4
two dots, encoded :: envoy :: 200 200 closed | GET /a/%2e%2E/b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
two slashes :: envoy :: 200 200 closed | GET //a//b host=a ; GET /end host=a :: paths are routed, counted and forwarded in one form; `path: as_sent` keeps the bytes
upgrade required :: envoy :: 426 "no" 200 closed | GET /answers/upgrade-required host=a ; GET /end host=a :: a 426 must have `Upgrade`: RFC 9110, 15.5.22
via :: envoy :: 200 200 closed | GET /via host=a via="1.1 other" ; GET /end host=a :: each proxy adds itself: RFC 9110, 7.6.3; `via: false` switches it off
NUL, encoded :: caddy :: 200 200 closed | GET /a%00b host=a ; GET /end host=a :: some recipients end the path at the NUL
an upgrade with a body :: caddy :: 200 "ok" 200 closed | POST /answers/an-upgrade-with-a-body host=a upgrade="websocket" body="hello" ; GET /end host=a :: a WebSocket request has no body, so it is no upgrade; Caddy forwards the field without its option
answer folded :: caddy :: 200 x-kept="y z" "ok" 200 closed | GET /answers/answer-folded host=a ; GET /end host=a :: obsolete, and recipients unfold it differently
answer length and chunked :: caddy :: 200 "ok" 200 closed | GET /answers/answer-length-and-chunked host=a ; GET /end host=a :: ambiguous length: an upstream that sends both may be attacked through us
answer length twice alike :: caddy :: 200 "ok" 200 closed | GET /answers/answer-length-twice-alike host=a ; GET /end host=a :: two lengths, even if equal, suggest response splitting
answer via :: caddy :: 200 "ok" 200 closed | GET /answers/answer-via host=a ; GET /end host=a :: Caddy replaces the entry of an earlier proxy
answer with 9 KiB of trailers :: caddy :: 200 cut closed | GET /answers/answer-with-9-KiB-of-trailers host=a :: our bound for trailers of a response is 64 KiB
answer with a space before the colon :: caddy :: 200 "ok" 200 closed | GET /answers/answer-with-a-space-before-the-colon host=a ; GET /end host=a :: recipients read such a name differently: RFC 9112, 5.1
answer with bare LFs :: caddy :: 200 "ok" 200 closed | GET /answers/answer-with-bare-LFs host=a ; GET /end host=a :: recipients disagree on whether a bare LF ends a line
chunk size with 40 zeros :: caddy :: 502 closed |  :: refused by both; the fault is the client's, not the upstream's
chunk size without a number :: caddy :: 502 closed |  :: refused by both; the fault is the client's, not the upstream's
chunked, complete :: caddy :: 200 200 closed | POST /framed host=a in chunks body="hello" ; GET /end host=a :: the whole body has arrived, so its length is sent: some servers answer 411 without it
dot in a name :: caddy :: 200 200 closed | GET /a host=a ; GET /end host=a :: Caddy drops such names; we drop those that imitate a key or framing field
dot segment :: caddy :: 200 200 closed | GET /./a/./b host=a ; GET /end host=a :: Caddy forwards the path as it was sent; limits and routes count its normal form
encoding malformed :: caddy :: 400 closed |  :: refused by both; the connection is in sync and is kept
expect empty :: caddy :: 200 200 closed | POST /a host=a expect="" body="hello" ; GET /end host=a :: an empty list expects nothing
expect in capitals :: caddy :: 100 200 200 closed | POST /a host=a expect="100-CONTINUE" body="hello" ; GET /end host=a :: Caddy has answered the client and forwards the expectation all the same
expect more :: caddy :: 100 200 200 closed | POST /a host=a expect="100-continue, more" body="hello" ; GET /end host=a :: an unknown expectation is a 417: RFC 9110, 10.1.1
expect twice :: caddy :: 100 200 200 closed | POST /a host=a expect="100-continue, 100-continue" body="hello" ; GET /end host=a :: Caddy has answered the client and forwards the expectation all the same
expect with a comma :: caddy :: 100 200 200 closed | POST /a host=a expect="100-continue," body="hello" ; GET /end host=a :: Caddy has answered the client and forwards the expectation all the same
expect, continued :: caddy :: 100 100 200 200 closed | POST /continues host=a expect="100-continue" body="hello" ; GET /end host=a :: Caddy answers the client itself, and once more when the upstream does
expect, refused :: caddy :: 100 waits | POST /refused-early host=a expect="100-continue" || waits | POST /refused-early host=a expect="100-continue" :: Caddy asks for a body that the upstream has refused
letter, encoded :: caddy :: 200 200 closed | GET /%61%7Eb host=a ; GET /end host=a :: Caddy forwards the path as it was sent; limits and routes count its normal form
not modified with a length :: caddy :: 304 200 closed | GET /answers/not-modified-with-a-length host=a ; GET /end host=a :: Caddy drops the length of the representation
status above 599 :: caddy :: 700 "ok" 200 closed | GET /answers/status-above-599 host=a ; GET /end host=a :: not a status: RFC 9110, 15
switch without a question :: caddy :: 200 200 closed | GET /answers/switch-without-a-question host=a ; GET /end host=a :: the client asked for no tunnel; Caddy makes a 200 of the answer
two dots :: caddy :: 200 200 closed | GET /a/../b host=a ; GET /end host=a :: Caddy forwards the path as it was sent; limits and routes count its normal form
two dots above the root :: caddy :: 200 200 closed | GET /../a host=a ; GET /end host=a :: recipients read it differently
two dots, encoded :: caddy :: 200 200 closed | GET /a/%2e%2E/b host=a ; GET /end host=a :: Caddy forwards the path as it was sent; limits and routes count its normal form
two slashes :: caddy :: 200 200 closed | GET //a//b host=a ; GET /end host=a :: Caddy forwards the path as it was sent; limits and routes count its normal form
underscore in another name :: caddy :: 200 200 closed | GET /a host=a ; GET /end host=a :: Caddy drops such names; we drop those that imitate a key or framing field
upgrade required :: caddy :: 426 "no" 200 closed | GET /answers/upgrade-required host=a ; GET /end host=a :: Caddy drops the field that says which protocol is required
via :: caddy :: 200 200 closed | GET /via host=a via="1.1 other" ; GET /end host=a :: each proxy adds itself: RFC 9110, 7.6.3
"#;

/// One line of the table.
pub(crate) struct Difference {
    pub(crate) stream: &'static str,
    pub(crate) peer: &'static str,
    /// One of these.
    pub(crate) outcomes: Vec<&'static str>,
    pub(crate) reason: &'static str,
}

/// All differences.
pub(crate) fn all() -> Vec<Difference> {
    let lines = TABLE.lines().filter(|line| !line.is_empty());
    let differences = lines.map(|line| {
        let columns: Vec<_> = line.split(" :: ").collect();
        let [stream, peer, outcomes, reason] = columns[..] else { panic!("four columns: {line}") };
        Difference { stream, peer, outcomes: outcomes.split(" || ").collect(), reason }
    });
    differences.collect()
}
