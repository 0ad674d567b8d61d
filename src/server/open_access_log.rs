//! Opens the access log that the configuration names.

use std::ffi::OsString;

use super::StartError;
use crate::{
    config::{self, AccessLogFormat, LogDestination},
    telemetry::{
        AccessFormat, AccessLayout, AccessLog, AccessLogGuard, Colours, Destination, LogStyle,
    },
};

/// The access log and its thread; `None` if it is off. `env` returns the variables that describe a
/// terminal.
pub(super) fn open_access_log(
    configured: &config::AccessLogConfig,
    env: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<(AccessLog, AccessLogGuard)>, StartError> {
    let destination = match &configured.to {
        LogDestination::Off => return Ok(None),
        LogDestination::Stderr => Destination::Stderr,
        LogDestination::Stdout => Destination::Stdout,
        LogDestination::File(path) => Destination::File(path),
    };
    let style = LogStyle::automatic(&destination, env);
    let format = match (configured.format, style) {
        (Some(AccessLogFormat::Json), _) | (None, LogStyle::Json) => AccessFormat::Json,
        (Some(AccessLogFormat::Combined), _) => AccessFormat::Combined,
        (Some(AccessLogFormat::Text), LogStyle::Json) => {
            AccessFormat::Text { colours: Colours::Off }
        }
        (_, LogStyle::Text { colours }) => AccessFormat::Text { colours },
    };
    let layout = AccessLayout::new(format, configured.fields.as_deref());
    AccessLog::open(&destination, layout).map(Some).map_err(|error| {
        let path = match &destination {
            Destination::File(path) => path.display().to_string(),
            Destination::Stderr | Destination::Stdout => String::new(),
        };
        StartError::AccessLog { path, error }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::AccessField;

    #[test]
    fn fields_have_the_same_names_in_files_and_in_lines() {
        let named = |name: &str| {
            let yaml = format!("access_log: {{fields: [{name}]}}\nupstreams: {{}}\nroutes: []\n");
            let config = config::parse("t.yaml", &yaml).unwrap().config;
            config.access_log.fields.unwrap()[0]
        };
        let others = [AccessField::Referer, AccessField::UserAgent];
        for own in AccessField::JSON.into_iter().chain(others) {
            assert_eq!(named(own.name()), own);
        }
    }
}
