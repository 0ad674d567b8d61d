//! The values of a request that a route's header rules, redirect and rewritten path use.

use std::{borrow::Cow, net::IpAddr};

use http::Method;
use tidegate_http1::RequestHead;
use tidegate_identity::OwnedConsumer;
use tidegate_route::normalize::{Slashes, without_parameters};
use tidegate_template::TemplateValues;
use tidegate_upstream::OwnUrlField;

use super::{forwarded_path, forwarded_scheme, host, own_urls::PublicNames};
use crate::error::GatewayError;
use crate::snapshot::{ForwardedPath, Route};

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
        forwarded_scheme(&self.head.fields).unwrap_or(self.connection_scheme)
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
    /// The route's `rewrite` gives no valid path: an inserted value adds a `.` or `..` segment, or
    /// breaks a percent escape.
    pub fn forwarded_path(&self) -> Result<Cow<'r, str>, GatewayError> {
        match &self.route.edits.rewrite {
            None => {
                let path = match self.route.edits.path {
                    ForwardedPath::AsSent => self.head.path(),
                    ForwardedPath::Normalized | ForwardedPath::Strict => self.path,
                };
                Ok(Cow::Borrowed(forwarded_path(path, self.route.strip_prefix.as_deref())))
            }
            Some(rewrite) => {
                let path = self.with_values(|values| rewrite.render(values));
                path.map(Cow::Owned).map_err(GatewayError::Path)
            }
        }
    }

    /// The fields that name resources of the upstream by URLs of this gateway.
    #[inline]
    pub fn own_url_fields(&self) -> Vec<OwnUrlField> {
        // Requests of these methods copy and lock nothing.
        if matches!(self.head.method, Method::GET | Method::HEAD | Method::POST | Method::OPTIONS) {
            return Vec::new();
        }
        let names = PublicNames {
            fields: &self.head.fields,
            route: self.route,
            slashes: self.slashes,
            from_trusted_proxy: self.from_trusted_proxy,
        };
        names.own_url_fields()
    }

    /// The prefix that was stripped from the path; `None` if the path did not begin with it.
    pub fn stripped_prefix(&self) -> Option<&'r str> {
        let prefix = self.route.strip_prefix.as_deref()?;
        let is_stripped = forwarded_path(self.path, Some(prefix)).len() < self.path.len();
        Some(prefix).filter(|_| is_stripped)
    }
}
