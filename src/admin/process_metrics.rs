//! The metrics of the process, with the names that Prometheus' client libraries use.

use std::{fmt, sync::OnceLock};

use procfs::{
    WithCurrentSystemInfo,
    process::{LimitValue, Process},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};

use super::encode::{start_counters, write_gauge};

/// When the system was booted, in seconds since the epoch. Read once, because the length of its
/// file grows with the number of CPUs.
static BOOT_TIME: OnceLock<Option<u64>> = OnceLock::new();

/// Reads the process's metrics at each scrape. A value that the system does not have is left out.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(process) = Process::myself() else { return Ok(()) };
        encode_usage(&process, &mut encoder)?;
        if let Ok(open) = process.fd_count() {
            write_gauge(&mut encoder, "open_fds", "Open file descriptors", open as u64)?;
        }
        if let Ok(limits) = process.limits() {
            let max = match limits.max_open_files.soft_limit {
                LimitValue::Value(max) => max,
                LimitValue::Unlimited => u64::MAX,
            };
            write_gauge(&mut encoder, "max_fds", "Maximum number of open file descriptors", max)?;
        }
        Ok(())
    }
}

fn encode_usage(process: &Process, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Ok(stat) = process.stat() else { return Ok(()) };
    let ticks_per_second = procfs::ticks_per_second();
    let seconds = |ticks: u64| ticks as f64 / ticks_per_second as f64;
    let help = "CPU time of the process, user and system, in seconds";
    let cpu = seconds(stat.utime + stat.stime);
    let mut family = start_counters(encoder, "cpu_seconds", help)?;
    family.encode_counter::<NoLabelSet, f64, u64>(&cpu, None)?;
    let help = "Resident memory in bytes";
    write_gauge(encoder, "resident_memory_bytes", help, stat.rss_bytes().get())?;
    write_gauge(encoder, "virtual_memory_bytes", "Virtual memory in bytes", stat.vsize)?;
    let threads = u64::try_from(stat.num_threads).unwrap_or(0);
    write_gauge(encoder, "threads", "Threads of the process", threads)?;
    if let Some(booted) = BOOT_TIME.get_or_init(|| procfs::boot_time_secs().ok()) {
        let help = "When the process was started, in seconds since the epoch";
        let started = *booted as f64 + seconds(stat.starttime);
        encoder
            .encode_descriptor("start_time_seconds", help, None, MetricType::Gauge)?
            .encode_gauge(&started)?;
    }
    Ok(())
}
