//! Checks `access_log`.

use tidegate_config::{AccessLogConfig, AccessLogFormat};

use super::section::Section;

/// Reports duplicate fields, an empty list, and fields together with a format that has its own.
pub(super) fn check(root: &Section<'_>, log: &AccessLogConfig) {
    let Some(fields) = &log.fields else { return };
    if log.format == Some(AccessLogFormat::Combined) {
        let what = "`fields` with `format: combined`, which has its own";
        return root.at("access_log").at("fields").fault(what, "`format: json` or `format: text`");
    }
    if fields.is_empty() {
        root.at("access_log").at("fields").fault("no field", "at least one, or no `fields`");
    }
    for (index, field) in fields.iter().enumerate() {
        if fields[..index].contains(field) {
            let section = root.at("access_log").at("fields").index(index);
            section.fault("a field that is listed before", "each field once");
        }
    }
}
