//! The dashboard at `/`: one page, its style and its script, embedded in the binary. It uses
//! `/api/events`, `/api/throttle` and `/api/overrides`, nothing else, and loads nothing from
//! another host.

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

/// An embedded file.
#[derive(Clone, Copy)]
pub(super) struct DashboardFile {
    pub(super) media: &'static str,
    content: &'static str,
}

pub(super) const HTML: DashboardFile = DashboardFile {
    media: "text/html; charset=utf-8",
    content: include_str!("dashboard/index.html"),
};
pub(super) const CSS: DashboardFile = DashboardFile {
    media: "text/css; charset=utf-8",
    content: include_str!("dashboard/dashboard.css"),
};
pub(super) const JS: DashboardFile = DashboardFile {
    media: "text/javascript; charset=utf-8",
    content: include_str!("dashboard/dashboard.js"),
};
pub(super) const ICON: DashboardFile =
    DashboardFile { media: "image/svg+xml", content: include_str!("dashboard/favicon.svg") };

/// What the page may do: load its own files, and connect to this address.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'";

/// The response with `file`.
pub(super) fn serve(file: DashboardFile) -> Response {
    let headers = [
        (header::CONTENT_TYPE, file.media),
        // A newer version of the gateway has other files.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, file.content).into_response()
}
