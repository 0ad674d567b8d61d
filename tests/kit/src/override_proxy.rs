//! A Redis proxy that can answer every command with a fixed reply.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A proxy in front of one Redis. It lives as long as the test process.
pub struct OverrideProxy {
    port: u16,
    reply: Arc<Mutex<Option<String>>>,
}

impl OverrideProxy {
    /// Starts a proxy in front of the server at this URL, which is on loopback.
    pub fn start(url: &str) -> Self {
        let port = url.rsplit_once(':').expect("a port").1.parse().expect("a number");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy_port = listener.local_addr().expect("a bound address").port();
        let reply = Arc::<Mutex<Option<String>>>::default();
        let proxy = Self { port: proxy_port, reply: reply.clone() };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)));
                let reply = reply.clone();
                if let Ok(server) = server {
                    thread::spawn(move || serve(client, server, &reply));
                }
            }
        });
        proxy
    }

    /// The proxy's URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on answers every command with `reply`, which is RESP with its CR LF.
    pub fn reply_with(&self, reply: &str) {
        *self.reply.lock().expect("no panic") = Some(reply.to_owned());
    }

    /// Ends [`Self::reply_with`]. Connections on which the proxy has answered are closed at their
    /// next command.
    pub fn forward(&self) {
        *self.reply.lock().expect("no panic") = None;
    }
}

/// Forwards commands one by one, or answers them. A connection that has answered a command stops
/// forwarding.
fn serve(client: TcpStream, mut server: TcpStream, reply: &Mutex<Option<String>>) {
    let mut own_replies = client.try_clone().expect("a socket");
    own_replies.set_nodelay(true).expect("no delay");
    server.set_nodelay(true).expect("no delay");
    let mut replies = server.try_clone().expect("a socket");
    let mut to_client = client.try_clone().expect("a socket");
    let mut copying = Some(thread::spawn(move || std::io::copy(&mut replies, &mut to_client)));
    let mut commands = BufReader::new(client);
    while let Some(command) = read_command(&mut commands) {
        let fixed = reply.lock().expect("no panic").clone();
        let sent = match fixed {
            Some(reply) => {
                // Replies keep their order: replies to forwarded commands go first.
                if let Some(copying) = copying.take() {
                    let _ = server.shutdown(Shutdown::Write);
                    let _ = copying.join();
                }
                own_replies.write_all(reply.as_bytes())
            }
            None if copying.is_some() => server.write_all(&command),
            None => break,
        };
        if sent.is_err() {
            break;
        }
    }
    // They may be closed already.
    for end in [own_replies, server] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// The bytes of one command: a RESP array of bulk strings.
fn read_command(from: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut command = Vec::new();
    let count = read_length(from, &mut command)?;
    for _ in 0..count {
        let length = read_length(from, &mut command)?;
        let start = command.len();
        command.resize(start + length + 2, 0);
        from.read_exact(&mut command[start..]).ok()?;
    }
    Some(command)
}

/// The number of a line such as `*3` or `$17`; the line is appended to `command`.
fn read_length(from: &mut BufReader<TcpStream>, command: &mut Vec<u8>) -> Option<usize> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).ok()?;
    command.extend(&line);
    std::str::from_utf8(line.get(1..)?).ok()?.trim().parse().ok()
}
