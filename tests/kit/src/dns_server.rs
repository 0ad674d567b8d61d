//! A DNS server whose records a test moves.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

/// The data of a type's records, by name and type.
type Records = Arc<Mutex<HashMap<(String, u16), Vec<Vec<u8>>>>>;

/// A DNS server over UDP, with a TTL of 0.
pub struct DnsServer {
    /// Where it listens.
    pub address: SocketAddr,
    records: Records,
    /// Set while it answers nothing.
    pub is_silent: Arc<AtomicBool>,
    /// The number of queries that it has received.
    pub queries: Arc<AtomicUsize>,
}

impl DnsServer {
    /// Starts one without records on a free port.
    pub fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let server = Self {
            address: socket.local_addr().expect("an address"),
            records: Records::default(),
            is_silent: Arc::default(),
            queries: Arc::default(),
        };
        let (records, is_silent) = (server.records.clone(), server.is_silent.clone());
        let queries = server.queries.clone();
        thread::spawn(move || {
            let mut query = [0; 1500];
            while let Ok((length, client)) = socket.recv_from(&mut query) {
                queries.fetch_add(1, Ordering::SeqCst);
                if !is_silent.load(Ordering::SeqCst) {
                    let _ = socket.send_to(&answer(&query[..length], &records), client);
                }
            }
        });
        server
    }

    /// Removes all names.
    pub fn clear(&self) {
        self.records.lock().expect("no panic").clear();
    }

    /// Replaces the addresses of a name.
    pub fn set_addresses(&self, name: &str, addresses: &[&str]) {
        let mut records = self.records.lock().expect("no panic");
        let mut by_type = [(A, Vec::new()), (AAAA, Vec::new())];
        for address in addresses {
            match address.parse().expect("an address") {
                IpAddr::V4(v4) => by_type[0].1.push(v4.octets().to_vec()),
                IpAddr::V6(v6) => by_type[1].1.push(v6.octets().to_vec()),
            }
        }
        for (kind, data) in by_type {
            records.insert((name.to_owned(), kind), data);
        }
    }

    /// Replaces the services of a name. Each: priority, weight, port, host.
    pub fn set_services(&self, name: &str, services: &[(u16, u16, u16, &str)]) {
        let data = services.iter().map(|(priority, weight, port, host)| {
            let mut data: Vec<u8> =
                [priority, weight, port].iter().flat_map(|number| number.to_be_bytes()).collect();
            for label in host.split('.') {
                data.push(label.len() as u8);
                data.extend_from_slice(label.as_bytes());
            }
            data.push(0);
            data
        });
        self.records.lock().expect("no panic").insert((name.to_owned(), SRV), data.collect());
    }
}

fn answer(query: &[u8], records: &Records) -> Vec<u8> {
    let (mut at, mut labels) = (12, Vec::new());
    while query[at] > 0 {
        let label = &query[at + 1..=at + usize::from(query[at])];
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += 1 + label.len();
    }
    let (name, kind) = (labels.join("."), u16::from_be_bytes([query[at + 1], query[at + 2]]));
    let records = records.lock().expect("no panic");
    let is_known = records.keys().any(|(own, _)| *own == name);
    let found = records.get(&(name, kind)).cloned().unwrap_or_default();
    let mut response = query[..2].to_vec();
    response.extend([0x81, if is_known { 0x80 } else { 0x83 }, 0, 1, 0, found.len() as u8]);
    response.extend([0; 4]);
    response.extend(&query[12..at + 5]);
    for data in found {
        response.extend([0xc0, 12]);
        response.extend(kind.to_be_bytes());
        response.extend([0, 1, 0, 0, 0, 0]);
        response.extend((data.len() as u16).to_be_bytes());
        response.extend(data);
    }
    response
}
