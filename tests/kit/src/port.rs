//! Ports for servers that cannot be given a listener: configurations and other programs.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket},
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
};

/// Ports for servers: below Linux' ephemeral range, which begins at 32768.
const PORTS: Range<u16> = 16_384..32_768;

/// A port on which nothing listens, reserved until this process ends: neither the system nor
/// another test process will use it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = u32::from(PORTS.end - PORTS.start);
    // Each process starts at another port, so that few collide.
    let start = std::process::id().wrapping_mul(61) % count;
    let next = || start + NEXT.fetch_add(1, Ordering::Relaxed);
    let mut ports = (0..count).map(|_| PORTS.start + (next() % count) as u16);
    ports.find(|&port| reserve(port)).expect("a free port")
}

/// [`free_port`] of 127.0.0.1.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

/// Reserves a port if nothing listens on it. The reservation is the UDP port of the same number,
/// held until the process ends: it keeps other test processes away while no server listens on TCP.
fn reserve(port: u16) -> bool {
    let Ok(claim) = UdpSocket::bind(("127.0.0.1", port)) else { return false };
    let is_free = TcpListener::bind(("127.0.0.1", port)).is_ok();
    if is_free {
        Box::leak(Box::new(claim));
    }
    is_free
}
