//! A name server whose answers change on command.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex},
    thread,
};

/// Time to live of every answer, in seconds.
const TTL: u32 = 1;
/// Length of a DNS header, in bytes.
const HEADER: usize = 12;
/// Record types.
const A: u16 = 1;
const AAAA: u16 = 28;

/// Names, in lower case, and their addresses.
type Names = Arc<Mutex<BTreeMap<String, Vec<IpAddr>>>>;

/// A name server over UDP, for A and AAAA. It lives as long as the process.
pub struct NameServer {
    names: Names,
}

impl NameServer {
    /// Starts it. A resolver's configuration permits only port 53.
    ///
    /// # Errors
    ///
    /// The port is taken, or the process may not bind it.
    pub fn start(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let names = Names::default();
        let answered = names.clone();
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query) {
                if let Some(answer) = answer(&query[..length], &answered) {
                    // The client asks again.
                    let _ = socket.send_to(&answer, client);
                }
            }
        });
        Ok(Self { names })
    }

    /// Sets the addresses of a name.
    pub fn set(&self, name: &str, addresses: &[IpAddr]) {
        let mut names = self.names.lock().expect("no panic");
        names.insert(name.to_ascii_lowercase(), addresses.to_vec());
    }
}

/// The answer to a query with one question; `None` for other messages.
fn answer(query: &[u8], names: &Names) -> Option<Vec<u8>> {
    let (name, question_end) = question(query)?;
    let kind = u16::from_be_bytes([query[question_end - 4], query[question_end - 3]]);
    let known = names.lock().expect("no panic").get(&name).cloned();
    let addresses: Vec<Vec<u8>> = known
        .iter()
        .flatten()
        .filter_map(|address| match (address, kind) {
            (IpAddr::V4(address), A) => Some(address.octets().to_vec()),
            (IpAddr::V6(address), AAAA) => Some(address.octets().to_vec()),
            _ => None,
        })
        .collect();
    // NXDOMAIN for an unknown name.
    let code = if known.is_some() { 0 } else { 3 };
    let mut bytes = query[..2].to_vec();
    bytes.extend([0x85, 0x80 | code, 0, 1]);
    bytes.extend((addresses.len() as u16).to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(&query[HEADER..question_end]);
    for address in addresses {
        // A reference to the question's name.
        bytes.extend([0xc0, HEADER as u8]);
        bytes.extend(kind.to_be_bytes());
        bytes.extend([0, 1]);
        bytes.extend(TTL.to_be_bytes());
        bytes.extend((address.len() as u16).to_be_bytes());
        bytes.extend(address);
    }
    Some(bytes)
}

/// The name of the first question, and the question's end.
fn question(query: &[u8]) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    let mut at = HEADER;
    loop {
        let length = usize::from(*query.get(at)?);
        let label = query.get(at + 1..at + 1 + length)?;
        at += 1 + length;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
    }
    let end = at + 4;
    (query.len() >= end).then(|| (labels.join("."), end))
}
