//! The values of a request that a route's header rules, redirect and rewritten path use.

use std::{borrow::Cow, net::IpAddr};

use super::{forwarded_path, host};
use crate::{
    error::GatewayError,
    http1::RequestHead,
    identity::OwnedConsumer,
    route::normalize::{Slashes, without_parameters},
    snapshot::Route,
    template::TemplateValues,
};

/// A request on its route.
#[derive(Clone, Copy)]
pub struct RoutedRequest<'r> {
    /// Its route.
    pub route: &'r Route,
    /// Its head.
    pub head: &'r RequestHead,
    /// Its path in normal form.
    pub path: &'r str,
    /// The client's address, behind trusted proxies.
    pub client_ip: IpAddr,
    /// Its id.
    pub request_id: &'r [u8],
    /// Who sends it, if that is known.
    pub consumer: Option<&'r OwnedConsumer>,
    /// The scheme of its connection.
    pub connection_scheme: &'r str,
    /// True if its peer is a trusted proxy, whose `X-Forwarded-Proto` is used.
    pub from_trusted_proxy: bool,
    /// How `//` in a path is treated.
    pub slashes: Slashes,
}

impl<'r> RoutedRequest<'r> {
    /// The scheme that the client used: `http` or `https`.
    pub fn scheme(&self) -> &'r str {
        if !self.from_trusted_proxy {
            return self.connection_scheme;
        }
        match self.head.fields.get("x-forwarded-proto") {
            Some(b"https") => "https",
            Some(b"http") => "http",
            _ => self.connection_scheme,
        }
    }

    /// Calls `read` with the values of the template variables.
    pub fn with_values<T>(&self, read: impl FnOnce(&TemplateValues<'_>) -> T) -> T {
        let (host, routed) = (host(&self.head.fields), without_parameters(self.path, self.slashes));
        let params = self.route.captures(&routed);
        read(&TemplateValues {
            client_ip: self.client_ip,
            host: &host,
            method: self.head.method.as_str(),
            scheme: self.scheme(),
            request_id: self.request_id,
            route: &self.route.name,
            path: self.path,
            query: self.head.query(),
            params: &params,
            consumer: self.consumer.map(OwnedConsumer::view),
            headers: Some(&self.head.fields),
        })
    }

    /// The path to forward.
    ///
    /// # Errors
    /// The route's `rewrite` gives no valid path: an inserted value adds a `.` or `..` segment, or breaks a percent
    /// escape.
    pub fn forwarded_path(&self) -> Result<Cow<'r, str>, GatewayError> {
        match &self.route.edits.rewrite {
            None => {
                let prefix = self.route.strip_prefix.as_deref();
                Ok(Cow::Borrowed(forwarded_path(self.path, prefix)))
            }
            Some(rewrite) => {
                let path = self.with_values(|values| rewrite.render(values));
                path.map(Cow::Owned).map_err(GatewayError::Path)
            }
        }
    }

    /// The prefix that was stripped from the path; `None` if the path did not begin with it.
    pub fn stripped_prefix(&self) -> Option<&'r str> {
        let prefix = self.route.strip_prefix.as_deref()?;
        let is_stripped = forwarded_path(self.path, Some(prefix)).len() < self.path.len();
        Some(prefix).filter(|_| is_stripped)
    }
}
