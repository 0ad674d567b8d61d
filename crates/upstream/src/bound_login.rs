//! Logins that belong to a connection: with NTLM and its relatives, and with Negotiate at some
//! servers, a server takes every later request on the connection for the one who has logged in.

use tidegate_http1::{Fields, ResponseHead};

use super::outgoing_head::{AttemptHead, OutgoingHead};

/// True if a login in these `fields` of a request belongs to its connection.
pub fn binds_connection(fields: &Fields) -> bool {
    fields.get_all("authorization").any(lists_bound)
}

/// True if a login of the request with this head belongs to its connection: the client's, or one
/// that a rule writes.
pub(super) fn is_sent(head: &AttemptHead<'_>) -> bool {
    let OutgoingHead { client, changes, .. } = head.head;
    let written = changes.as_ref().map(|changes| &changes.written);
    client.rare.authorization && binds_connection(&client.fields)
        || written.is_some_and(binds_connection)
}

/// True if the server of `head` asks for such a login, is about to complete one, or says that one
/// lasts.
pub(super) fn is_asked_for(head: &ResponseHead) -> bool {
    let asks = |name| head.fields.get_all(name).any(lists_bound);
    let lasts = |value: &[u8]| value.trim_ascii().eq_ignore_ascii_case(b"true");
    matches!(head.status, 401 | 407) && (asks("www-authenticate") || asks("proxy-authenticate"))
        || head.fields.get_all("persistent-auth").any(lasts)
}

/// True if a member of a list begins with such a scheme.
fn lists_bound(value: &[u8]) -> bool {
    value.split(|byte| *byte == b',').any(is_bound)
}

/// True if `credentials`, or a challenge, begin with such a scheme.
fn is_bound(credentials: &[u8]) -> bool {
    let scheme = credentials.trim_ascii_start();
    let end = scheme.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(scheme.len());
    let scheme = &scheme[..end];
    let is = |known: &[u8]| scheme.eq_ignore_ascii_case(known);
    // Negotiate, Nego2 and NegoEx.
    let begins = scheme.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(b"nego"));
    begins || is(b"ntlm") || is(b"kerberos") || is(b"credssp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_alone_decides() {
        for bound in [
            "NTLM",
            "ntlm TlRMTVNTUAAB",
            "Negotiate",
            "negotiate YIIg",
            " Negotiate x",
            "Nego2",
            "nego2 TlRM",
            "Kerberos YIIg",
            "CredSSP x",
        ] {
            assert!(is_bound(bound.as_bytes()), "{bound}");
        }
        for free in
            ["", "Neg x", "Basic TlRMTQ==", "NTLMv2 x", "Bearer negotiate", "Digest realm=\"NTLM\""]
        {
            assert!(!is_bound(free.as_bytes()), "{free}");
        }
    }
}
