//! [`Notifier`]: reports the state of the process to a service manager such as systemd
//! (`sd_notify`).

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    process,
    time::Duration,
};

use crate::{clock, config::EnvLookup};

/// Sends states to the socket in `NOTIFY_SOCKET`; does nothing without the variable.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The longest time between two signs of life.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// The notifier for the environment's variables.
    pub(super) fn new(env: EnvLookup<'_>) -> Self {
        let Some(name) = env("NOTIFY_SOCKET") else { return Self::default() };
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&name),
        };
        let opened = address.and_then(|address| Ok((UnixDatagram::unbound()?, address)));
        let socket = opened.inspect_err(|error| {
            tracing::warn!(%error, "NOTIFY_SOCKET cannot be used; the service manager gets no reports");
        });
        let number = |name| env(name)?.to_str()?.parse::<u64>().ok();
        let is_own = number("WATCHDOG_PID").is_none_or(|id| id == u64::from(process::id()));
        let micros = number("WATCHDOG_USEC").filter(|micros| *micros > 0 && is_own);
        Self { socket: socket.ok(), watchdog: micros.map(Duration::from_micros) }
    }

    /// The longest time between two calls of [`Self::alive`], if the service manager watches the
    /// process.
    pub(super) fn watchdog(&self) -> Option<Duration> {
        self.watchdog.filter(|_| self.socket.is_some())
    }

    /// The gateway serves, or a reload has ended.
    pub(super) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\n"));
    }

    /// A reload or an upgrade has begun.
    pub(super) fn reloading(&self, status: &str) {
        let micros = clock::instant_micros();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS={status}\n"));
    }

    /// The process `id` now serves in place of this one.
    pub(super) fn handed_over(&self, id: u32) {
        self.send(&format!("MAINPID={id}\nREADY=1\nSTATUS=serving after an upgrade\n"));
    }

    /// The gateway drains.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=draining requests in flight\n");
    }

    /// The gateway makes progress.
    pub(super) fn alive(&self) {
        self.send("WATCHDOG=1\n");
    }

    fn send(&self, state: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::warn!(%error, "the state cannot be reported to the service manager");
        }
    }
}
