//! Checks `access_log`.

use super::fault_collector::FaultCollector;
use crate::config::{AccessLog, AccessLogFormat};

/// Reports fields that are named twice, none, and those of a format that has its own.
pub(super) fn check(collector: &mut FaultCollector<'_>, log: &AccessLog) {
    let Some(fields) = &log.fields else { return };
    if log.format == Some(AccessLogFormat::Combined) {
        let what = "`fields` with `format: combined`, which has its own";
        return collector.fault("access_log.fields", what, "`format: json` or `format: text`");
    }
    if fields.is_empty() {
        collector.fault("access_log.fields", "no field", "at least one, or no `fields`");
    }
    for (index, field) in fields.iter().enumerate() {
        if fields[..index].contains(field) {
            let path = format!("access_log.fields[{index}]");
            collector.fault(&path, "a field that is listed before", "each field once");
        }
    }
}
