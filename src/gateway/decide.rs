//! The decide action: answers another proxy, which asks before it forwards a request.

use http::StatusCode;

use super::{Gateway, context::RequestContext, rules::WorkerRoute};
use crate::{
    http1::{Fields, RequestDescription},
    identity::Consumer,
    respond::{self, LocalReply},
};

/// The field with the status of a refusal that is sent with another one.
const OWN_STATUS: &str = "x-tidegate-status";

impl Gateway {
    /// The answer for an admitted request. The fields that an upstream would get are in it, for the asking proxy.
    pub(super) fn admission(request: &RequestContext, route: &WorkerRoute) -> LocalReply {
        let mut fields = Fields::new();
        for name in route.settings.auth.iter().flat_map(|auth| auth.copied_headers()) {
            for value in request.head.fields.get_all(name) {
                fields.push(name.as_str(), value);
            }
        }
        for (name, value) in request.ledger.consumer().into_iter().flat_map(Consumer::fields) {
            fields.push(name, value);
        }
        let form = request.question.as_ref().map(|question| question.form);
        respond::decision_reply(form.unwrap_or_default(), fields)
    }
}

impl RequestContext {
    /// True if another proxy asks, also if the question was refused before its route was found.
    pub(super) fn is_question(&self) -> bool {
        if let Some(route) = self.route() {
            return route.settings.decide().is_some();
        }
        let doors = self.rules().snapshot.doors.as_ref().filter(|_| self.from_trusted_proxy);
        doors.is_some_and(|doors| {
            let is_described = !matches!(RequestDescription::find(&self.head.fields), Ok(None));
            is_described || doors.have_prefix_of(self.head.path())
        })
    }

    /// The status to send instead of `status`, which is then in a field of its own: asking proxies may accept few.
    pub(super) fn status_for_asker(&self, status: StatusCode, fields: &mut Fields) -> StatusCode {
        let rules = self.route().and_then(|route| route.settings.decide());
        let sent = rules.map_or(status, |rules| rules.sent_status(status));
        if sent != status {
            fields.push_number(OWN_STATUS, status.as_u16().into());
        }
        sent
    }
}
