//! [`EndpointAddress`]: an endpoint's address and weight.

use super::{ServerAddress, Target};

/// An endpoint's address and weight, from the configuration or a name server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EndpointAddress {
    /// The target as configured.
    pub source: Target,
    /// The server and its protocol settings.
    pub target: Target,
    /// Its share of the requests.
    pub weight: u32,
    /// The endpoints with the lowest number are used; others only while all of these are out of
    /// service, full or already tried by the request.
    pub priority: u16,
}

impl EndpointAddress {
    /// The endpoint of a target that needs no resolving.
    pub fn of_target(target: &Target, weight: u32) -> Self {
        Self { source: target.clone(), target: target.clone(), weight, priority: 0 }
    }

    /// This address after a reload that changes its target to `source` and `weight`; `None` if
    /// `source` is another target.
    pub(super) fn adapted_to(&self, source: &Target, weight: u32) -> Option<Self> {
        if self.source.address != source.address {
            return None;
        }
        let is_service = matches!(source.address, ServerAddress::Service(_));
        if is_service {
            // Weight and server come from the SRV record.
            let weight = if weight == 0 { 0 } else { self.weight.max(1) };
            return (self.source == *source).then(|| Self { weight, ..self.clone() });
        }
        let mut target = source.clone();
        target.resolved = self.target.resolved;
        Some(Self { source: source.clone(), target, weight, priority: self.priority })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Protocol, TlsNameSource};

    fn target(address: ServerAddress, protocol: Protocol) -> Target {
        let (tls, resolved, send_proxy) = (None, None, None);
        Target { address, protocol, tls, tls_name: TlsNameSource::Target, resolved, send_proxy }
    }

    #[test]
    fn a_resolved_address_follows_the_configuration() {
        let name = |host: &str| ServerAddress::Tcp { host: host.into(), port: 80 };
        let source = target(name("a.test"), Protocol::Http1);
        let mut known = EndpointAddress::of_target(&source, 1);
        known.target.resolved = Some("10.0.0.1:80".parse().unwrap());
        let changed = target(name("a.test"), Protocol::Http2);
        let adapted = known.adapted_to(&changed, 5).unwrap();
        assert_eq!((adapted.weight, adapted.target.protocol), (5, Protocol::Http2));
        assert_eq!(adapted.target.resolved, known.target.resolved);
        assert_eq!(adapted.source, changed);
        assert!(known.adapted_to(&target(name("b.test"), Protocol::Http1), 1).is_none());
    }

    #[test]
    fn a_server_of_a_record_is_kept_while_the_record_is_asked_for_alike() {
        let record = ServerAddress::Service("_http._tcp.a.test".into());
        let source = target(record.clone(), Protocol::Http1);
        let mut known = EndpointAddress::of_target(&source, 30);
        known.target.address = ServerAddress::Tcp { host: "b.test".into(), port: 81 };
        assert_eq!(known.adapted_to(&source, 2).unwrap(), known);
        assert_eq!(known.adapted_to(&source, 0).unwrap().weight, 0);
        assert!(known.adapted_to(&target(record, Protocol::Http2), 1).is_none());
    }
}
